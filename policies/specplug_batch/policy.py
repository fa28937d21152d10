"""The plan half: chosen for the engine, and its plain form where nothing is learnt."""

from __future__ import annotations

from specplug.interfaces import Planner, PluginContext
from specplug.types.caps import DraftLengthChange, Ragged
from specplug.types.plan import HostStats, StepPlan
from specplug_batch.options import BatchOptions
from specplug_batch.padded import PaddedPlanner
from specplug_batch.ragged import RaggedPlanner


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine.

    Trees have no positions that acceptance could be learnt for.
    """
    caps = context.caps
    if caps.ragged in (Ragged.NATIVE, Ragged.LONGEST):
        return RaggedPlanner(context)
    has_choice = caps.draft_length_change is not DraftLengthChange.FIXED or 0 in caps.captured_draft_lengths
    chooses = has_choice and not caps.trees
    return (PaddedPlanner if chooses else FreePlanner)(context)


class FreePlanner(Planner):
    """Plans the longest drafts whose tokens are all free: up to `saturation` tokens a step."""

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length."""
        return StepPlan(self.longest_draft(max(1, len(stats.requests))), self._options.token_budget)

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length at this batch size, the only one planned."""
        return self._caps.fit_draft_length(max(0, self._options.saturation // batch_size - 1))
