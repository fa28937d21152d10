"""The plan half: chosen for the engine, and its plain form where nothing is learnt."""

from __future__ import annotations

from specplug.interfaces import Planner, PluginContext
from specplug.types.caps import DraftLengthChange, Feedback, PlanSite, Ragged
from specplug.types.plan import HostStats, StepPlan
from specplug_batch.options import BatchOptions
from specplug_batch.padded import PaddedPlanner
from specplug_batch.ragged import RaggedPlanner


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine.

    An engine that plans in the caller's own call keeps plans that do not depend on time: equal calls give equal text.
    Trees have no positions that acceptance could be learnt for.
    """
    caps = context.caps
    if caps.ragged is Ragged.NATIVE:
        return RaggedPlanner(context)
    chooses = not caps.trees and caps.draft_length_change is not DraftLengthChange.FIXED
    can_learn = caps.feedback is not Feedback.NONE and caps.plan_site is not PlanSite.INLINE
    return (PaddedPlanner if chooses and can_learn else FreePlanner)(context)


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
