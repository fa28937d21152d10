"""What the scheduler's process tells every worker with a step, beside what vLLM's own scheduler output says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from specplug.types.plan import NO_SPECULATION, StepPlan
from specplug.types.request import EngineEventKind
from specplug.types.verdict import Forced, Outcome

_ATTRIBUTE = "specplug_metadata"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended.

    Attributes:
        aborted: whether somebody took it off before its end.
        visible: tokens of prompt and output that the client saw at most; None where that is not known.
    """

    aborted: bool = False
    visible: int | None = None


class Constrained(NamedTuple):
    """What a grammar did to one request's draft, of which the step verifies what is left and what was added.

    Attributes:
        kept: tokens of the draft that it allows.
        cut: those behind them.
        confidence: of each token that it added behind those kept.
    """

    kept: int
    cut: int
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """One step's notes.

    Attributes:
        plan: of the drafts made at the end of this step.  Its caps are those that the policy sets where rows are
            padded; how long rows are, `num_spec_tokens_to_schedule` says.
        endings: of the finished requests.
        cache_salts: of the new requests that brought one.
        events: what happened to the whole engine since the step before.
        grammars: of the requests with a grammar whose drafts the step verifies, on V1.
    """

    plan: StepPlan = NO_SPECULATION
    endings: Mapping[str, Ending] = field(default_factory=dict)
    cache_salts: Mapping[str, str] = field(default_factory=dict)
    events: tuple[EngineEventKind, ...] = ()
    grammars: Mapping[str, Constrained] = field(default_factory=dict)


NO_METADATA = StepMetadata()


def attach(scheduler_output: Any, metadata: StepMetadata) -> None:
    """Send `metadata` along; they are pickled with the scheduler output where workers are other processes."""
    setattr(scheduler_output, _ATTRIBUTE, metadata)


def has(scheduler_output: Any) -> bool:
    """Whether our scheduler made this step: it sends notes with every one."""
    return hasattr(scheduler_output, _ATTRIBUTE)


def of(scheduler_output: Any) -> StepMetadata:
    """Return the notes of a step."""
    metadata = getattr(scheduler_output, _ATTRIBUTE, NO_METADATA)
    assert isinstance(metadata, StepMetadata)
    return metadata


def annotated(
    grammars: Mapping[str, Constrained], outcome: Outcome, names: Sequence[str], scheduled: Mapping[str, Sequence[int]]
) -> Outcome:
    """Complete what is reported of rows `names`, by what their grammars did to what was `scheduled`."""
    if not grammars:
        return outcome
    states = [grammars.get(name) for name in names]
    added = [
        [] if of is None else list(scheduled.get(name, ())[of.kept :]) for of, name in zip(states, names, strict=True)
    ]
    levels = [[] if of is None else of.confidence[: len(row)] for of, row in zip(states, added, strict=True)]
    cut = torch.tensor([0 if of is None else of.cut for of in states], dtype=torch.int32)
    widest = max(map(len, added))
    return replace(outcome, cut_by_grammar=cut, forced=Forced.build(added, levels, widest) if widest else None)
