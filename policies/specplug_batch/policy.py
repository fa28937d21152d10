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
    if caps.ragged is Ragged.NATIVE and not caps.verifies_budget:
        return RaggedPlanner(context)
    is_padded = caps.ragged is not Ragged.NATIVE and not caps.trees
    chooses = is_padded and caps.draft_length_change is not DraftLengthChange.FIXED
    can_learn = caps.feedback is not Feedback.NONE and caps.plan_site is not PlanSite.INLINE
    return (PaddedPlanner if chooses and can_learn else FreePlanner)(context)


class FreePlanner(Planner):
    """Plans the longest drafts whose tokens are all free: up to `saturation` tokens a step.

    Where drafts are cut on the device, the free tokens are the budget instead.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps
        self._plans: dict[int, StepPlan] = {}  # by batch size; there are few, and each step needs one

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length and budget."""
        batch_size = max(1, len(stats.requests))
        plan = self._plans.get(batch_size)
        if plan is None:
            plan = self._plans[batch_size] = StepPlan(self.longest_draft(batch_size), self._budget(batch_size))
        return plan

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length at this batch size, the only one planned."""
        options = self._options
        gamma = options.gamma_small if batch_size <= options.small_batch else options.gamma_large
        free = max(0, options.saturation // batch_size - 1)
        if self._caps.verifies_budget:
            free = self._budget(batch_size) or 0  # one row may use all of it
        return self._caps.fit_draft_length(min(gamma, free))

    def _budget(self, batch_size: int) -> int | None:
        """Return the batch's most draft tokens: the setting, or the free tokens if only a budget bounds the step."""
        stated = self._options.token_budget
        if stated is not None or not self._caps.verifies_budget:
            return stated
        return max(0, self._options.saturation - batch_size)
