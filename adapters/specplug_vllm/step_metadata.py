"""Step metadata: what specplug's scheduler and workers send each other along with vLLM's step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION, StepCost, StepPlan
from specplug.types.request import EngineEventKind
from specplug.types.verdict import Outcome

_ATTRIBUTE, _ADMITTED, _PROFILED = "specplug_metadata", "specplug_admitted", "specplug_profiled"
_LATE = "specplug_late"


@dataclass(frozen=True, slots=True)
class Ending:
    """Ending of a request.

    Attributes:
        aborted: whether the request was aborted before its end.
        visible: upper bound on the tokens of prompt and output that the client saw; None if unknown.
    """

    aborted: bool = False
    visible: int | None = None


class Constrained(NamedTuple):
    """Effect of a grammar on one request's draft.  The step verifies the tokens kept, then the tokens added.

    Attributes:
        kept: leading draft tokens that the grammar allows.
        cut: draft tokens after those, which were dropped.
        confidence: one value per token that the grammar added after those kept.
    """

    kept: int
    cut: int
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Metadata of one step.

    Attributes:
        plan: plan for the drafts made at the end of this step.  It holds the policy's caps only where rows are padded;
            `num_spec_tokens_to_schedule` gives the length of the rows.
        endings: how the finished requests ended, by request id.
        cache_salts: salts of the new requests that have one, by request id.
        events: events of the whole engine since the previous step.
        grammars: effects of grammars on the drafts that the step verifies, by request id; V1 only.
    """

    plan: StepPlan = NO_SPECULATION
    endings: Mapping[str, Ending] = field(default_factory=dict)
    cache_salts: Mapping[str, str] = field(default_factory=dict)
    events: tuple[EngineEventKind, ...] = ()
    grammars: Mapping[str, Constrained] = field(default_factory=dict)


NO_METADATA = StepMetadata()


def attach(scheduler_output: Any, metadata: StepMetadata) -> None:
    """Attach `metadata` to a scheduler output, which vLLM pickles if the workers are other processes."""
    setattr(scheduler_output, _ATTRIBUTE, metadata)


def has(scheduler_output: Any) -> bool:
    """Return whether specplug's scheduler made this step; it attaches metadata to every step."""
    return hasattr(scheduler_output, _ATTRIBUTE)


def of(scheduler_output: Any) -> StepMetadata:
    """Return the metadata of a step, or `NO_METADATA`."""
    metadata = getattr(scheduler_output, _ATTRIBUTE, NO_METADATA)
    assert isinstance(metadata, StepMetadata)
    return metadata


def set_verified_count(output: Any, count: int) -> None:
    """Attach to a runner's output how many draft tokens the step verified, if only the worker knows."""
    setattr(output, _ADMITTED, count)


def admitted(output: Any) -> int | None:
    """Return how many draft tokens a step verified, or None where the scheduler knows itself."""
    found: int | None = getattr(output, _ADMITTED, None)
    return found


def state_profiled(output: Any, costs: tuple[StepCost, ...]) -> None:
    """Attach to a runner's output the step costs that vLLM profiled at start-up; the scheduler needs them once."""
    setattr(output, _PROFILED, costs)


def profiled(output: Any) -> tuple[StepCost, ...]:
    """Return the step costs that a runner's output brings; () with most."""
    found: tuple[StepCost, ...] = getattr(output, _PROFILED, ())
    return found


def state_late(output: Any, rows: Iterable[str] | None) -> None:
    """Attach to a runner's output the requests that could not draft for the step, to be read once it has ended."""
    if rows is not None:
        setattr(output, _LATE, rows)


def late(output: Any) -> tuple[str, ...]:
    """Return the requests that could not draft for a step; see `specplug.runtime.rows`."""
    return tuple(getattr(output, _LATE, ()))


def drafts_nothing(scheduler_output: Any) -> bool:
    """Return whether a step neither verifies nor makes drafts; every worker concludes the same."""
    return not scheduler_output.scheduled_spec_decode_tokens and not scheduler_output.num_spec_tokens_to_schedule


def annotated(
    grammars: Mapping[str, Constrained], outcome: Outcome, names: Sequence[str], scheduled: Mapping[str, Sequence[int]]
) -> Outcome:
    """Add to the outcome of rows `names` what their grammars cut from, and added to, the `scheduled` drafts."""
    if not grammars:
        return outcome
    states = [grammars.get(name) for name in names]
    added = [
        [] if of is None else list(scheduled.get(name, ())[of.kept :]) for of, name in zip(states, names, strict=True)
    ]
    levels = [[] if of is None else of.confidence[: len(row)] for of, row in zip(states, added, strict=True)]
    cut = torch.tensor([0 if of is None else of.cut for of in states], dtype=torch.int32)
    widest = max(map(len, added))
    return replace(outcome, cut_by_grammar=cut, forced=Draft.of_rows(added, levels, widest) if widest else None)
