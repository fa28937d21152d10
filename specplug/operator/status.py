"""Status of a running server: plain data, and what an operator wants to know first of it.

Policies and proposers report what they like of themselves, so a report of another form is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from specplug.counts import MetricsSnapshot
from specplug.faults import status_of
from specplug.input_errors import flatten
from specplug.settings.sources import ResolvedSettings
from specplug.types.caps import EngineCaps, Ragged

if TYPE_CHECKING:
    import torch

    from specplug.cost.store import StartCosts
    from specplug.operator.server_planner import ServerPlanner
    from specplug.settings.model import Settings
    from specplug.steps.draft_stage import DraftStage
    from specplug.steps.slots import SlotAllocator

R = TypeVar("R", bound=BaseModel)

REASONS = ("drafting", "probing", "paused", "off by policy", "off by operator", "no step yet")
"""Why the newest plan has drafts or none; docs/operations.md has the meanings."""

_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PolicyDecision(BaseModel):
    """What a policy reports of its newest decision.

    Attributes:
        draft_length: that it decided on; single steps may have another.
        why: the reason in words.
        speed_up: tokens per second with drafts, relative to none, lately.
    """

    draft_length: int
    why: str = ""
    speed_up: _Factor | None = None


class CorpusTotals(NamedTuple):
    """The corpora that an engine drafts from, of all tenants together, and the store's problems."""

    corpora: int
    tokens: int
    problems: int


class _Store(BaseModel):
    tenants: dict[str, dict[str, Annotated[int, Field(ge=0)]]]
    problems: list[Any]


def engine_status(
    caps: EngineCaps, planner: ServerPlanner[Any], costs: StartCosts, lossy: str, drafter: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what every engine reports: its capabilities, settings, newest plan, control, policy and faults.

    Args:
        costs: what steps cost, as far as it was known before the first request.
        lossy: the engine's own lossy acceptance; "" for none.
        drafter: of the engine's own drafter, where that alone drafts, its name and the counts of its drafts.
    """
    return {
        "max_draft_length": caps.max_draft_length,
        "captured_draft_lengths": list(caps.captured_draft_lengths),
        "rows": reported_rows(caps),
        "lossy": lossy or None,
        "settings": reported_settings(planner.resolved),
        "scheduler": {
            "steps": planner.steps,
            "plan": {"draft_length": planner.plan.draft_length, "token_budget": planner.plan.token_budget},
            "control": planner.control.state(),
            "policy": planner.stage.status(),
            "costs": costs.status(),
            "faults": by_plugin(planner.faults),
            **drafter,
        },
    }


def worker_status(
    settings: Settings, device: torch.device, allocator: SlotAllocator, stage: DraftStage, counts: MetricsSnapshot
) -> dict[str, Any]:
    """Return what every worker that drafts reports: its device, proposers, slots, details and counts."""
    return {
        "device": str(device),
        "proposers": [settings.proposer, *settings.extra_proposers],
        "slots": allocator.status(),
        "sources": list(stage.sources),
        "details": reported_details(stage.proposers),
        "metrics": counts.as_dict(),
    }


def reported_settings(resolved: ResolvedSettings) -> dict[str, dict[str, Any]]:
    """Return every setting's value and the layer that set it, by dotted key."""
    plain = flatten(resolved.settings.model_dump(mode="json"))
    return {key: {"value": value, "origin": resolved.origins[key]} for key, value in plain}


def reported_rows(caps: EngineCaps) -> str:
    """Return in words how many draft tokens an engine verifies of each row."""
    if caps.verifies_budget:
        return "cut on the device to what the plan allows the batch"
    return "as many as drafted" if caps.ragged is Ragged.NATIVE else "padded to the draft length of the step"


def by_plugin(faults: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return fault counts nested by plug-in and kind of fault."""
    reported: dict[str, dict[str, int]] = {}
    for (name, kind), count in faults.items():
        reported.setdefault(name, {})[kind] = count
    return reported


def counting_parts(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of an engine's status that hold counts.

    They are those of its drafting workers, or the scheduler's if the engine's own drafter drafts.
    """
    return [part for part in (*status["workers"], status["scheduler"]) if "metrics" in part]


def reported_details(proposers: Mapping[str, object]) -> dict[str, Any]:
    """Return the details that proposers report, by name; {"error": ...} for a proposer whose report fails."""
    found = {name: status_of(f"proposer {name!r}", proposer) for name, proposer in proposers.items()}
    return {name: status for name, status in found.items() if status}


def decision(policy: Mapping[str, Any]) -> PolicyDecision | None:
    """Return the decision in the status of a policy, or of the first of joined policies that reports one."""
    return next(_valid(PolicyDecision, [policy, *policy.values()]), None)


def reason(steps: int, ceiling: int | None, draft_length: int, policy: Mapping[str, Any]) -> str:
    """Return which of `REASONS` explains the draft length of the newest of so many plans."""
    if ceiling == 0:
        return "off by operator"
    if not steps:
        return "no step yet"
    decided = decision(policy)
    if decided is None or (draft_length > 0) == (decided.draft_length > 0):
        return "drafting" if draft_length else "off by policy"
    return "probing" if draft_length else "paused"


def corpus_totals(details: Mapping[str, Any]) -> CorpusTotals | None:
    """Return the totals of the first proposer that reports a store; None if none does."""
    for store in _valid(_Store, details.values()):
        sizes = [tokens for corpora in store.tenants.values() for tokens in corpora.values()]
        return CorpusTotals(len(sizes), sum(sizes), len(store.problems))
    return None


def _valid(schema: type[R], reports: Any) -> Iterator[R]:
    for report in reports:
        try:
            yield schema.model_validate(report)
        except ValidationError:
            continue
