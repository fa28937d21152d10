"""Step metadata: what specplug's scheduler and workers send each other along with vLLM's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from specplug.steps.draft_report import NO_DRAFTS, DraftReport
from specplug.types.request import EngineEventKind
from specplug.types.step import NO_SPECULATION, Draft, Outcome, StepCost, StepPlan

_ATTRIBUTE = "specplug_metadata"


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
        reports: whether the drafter reports what drafts are expected to yield, and so drafts under any plan; V2 only.
        endings: how the finished requests ended, by request id.
        cache_salts: salts of the new requests that have one, by request id.
        events: events of the whole engine since the previous step.
        grammars: effects of grammars on the drafts that the step verifies, by request id; V1 only.
    """

    plan: StepPlan = NO_SPECULATION
    reports: bool = False
    endings: Mapping[str, Ending] = field(default_factory=dict)
    cache_salts: Mapping[str, str] = field(default_factory=dict)
    events: tuple[EngineEventKind, ...] = ()
    grammars: Mapping[str, Constrained] = field(default_factory=dict)


NO_METADATA = StepMetadata()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What only the worker knows of a step, on V2.

    Attributes:
        drafts: of the drafts that the step verified, to be read once it has ended.
        verified: how many draft tokens the step verified; None where the scheduler knows itself.
        profiled: the step costs that vLLM profiled at start-up; the scheduler needs them once.
    """

    drafts: DraftReport = NO_DRAFTS
    verified: int | None = None
    profiled: tuple[StepCost, ...] = ()


NO_REPORT = WorkerReport()


def attach(output: Any, metadata: StepMetadata | WorkerReport) -> None:
    """Attach metadata to a scheduler's or a runner's output, which vLLM pickles if the workers are other processes."""
    setattr(output, _ATTRIBUTE, metadata)


def of(scheduler_output: Any) -> StepMetadata:
    """Return the metadata of a step; `NO_METADATA` itself if specplug's scheduler did not make the step."""
    metadata: StepMetadata = getattr(scheduler_output, _ATTRIBUTE, NO_METADATA)
    return metadata


def report_of(runner_output: Any) -> WorkerReport:
    """Return what a runner's output reports, or `NO_REPORT`."""
    report: WorkerReport = getattr(runner_output, _ATTRIBUTE, NO_REPORT)
    return report


def is_idle(scheduler_output: Any) -> bool:
    """Return whether a step neither verifies nor makes drafts; every worker concludes the same."""
    return not scheduler_output.scheduled_spec_decode_tokens and not scheduler_output.num_spec_tokens_to_schedule


def add_grammars(
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
    longest = max(map(len, added))
    return replace(outcome, cut_by_grammar=cut, forced=Draft.of_rows(added, levels, longest) if longest else None)
