"""The plan half: the longest drafts that can pay at the current batch size."""

from __future__ import annotations

import math

from specplug.interfaces import Planner, PluginContext
from specplug.types.caps import DraftLengthChange, Feedback, PlanSite, Ragged
from specplug.types.plan import HostStats, StepPlan
from specplug_batch.options import BatchOptions
from specplug_batch.padded import PaddedPlanner
from specplug_batch.roofline import Roofline

SUREST = 0.999
"""The highest confidence to assume: tokens with at least this confidence are nearly always accepted."""


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine: one that learns, if a server has to choose one draft length for all rows.

    An engine that plans in the caller's own call keeps plans that do not depend on time: equal calls give equal text.
    Trees have no positions that acceptance could be learnt for.
    """
    caps, options = context.caps, context.options or BatchOptions()
    is_padded = caps.ragged is not Ragged.NATIVE and not caps.trees
    chooses = is_padded and caps.draft_length_change is not DraftLengthChange.FIXED
    can_learn = caps.feedback is not Feedback.NONE and caps.plan_site is not PlanSite.INLINE
    return (PaddedPlanner if chooses and can_learn and options.batch_size is None else BatchPlanner)(context)


class BatchPlanner(Planner):
    """Plans `gamma_small` or `gamma_large`, fitted to the engine's draft lengths and limited to what can pay.

    If the engine's cost of ragged drafts is that of their tokens, the trim half chooses the tokens, and the draft
    length only has to be long enough.  If rows are padded to a fixed length, or nothing can be learnt, the plan uses
    the greatest draft length at which all of the step's tokens are free.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._roofline = Roofline.of(self._options)
        self._caps = context.caps
        self._plans: dict[int, StepPlan] = {}  # by batch size; there are few, and each step needs one

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length and budget."""
        batch_size = self._options.batch_size or max(1, len(stats.requests))
        plan = self._plans.get(batch_size)
        if plan is None:
            plan = self._plans[batch_size] = StepPlan(self._draft_length(batch_size), self._budget(batch_size))
        return plan

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length at this batch size, the only one planned."""
        return self._draft_length(self._options.batch_size or batch_size)

    def _budget(self, batch_size: int) -> int | None:
        """Return the batch's most draft tokens: the setting, or the free tokens if only a budget bounds the step."""
        stated = self._options.token_budget
        if stated is not None or not self._caps.verifies_budget:
            return stated
        return max(0, self._options.saturation - batch_size)

    def _draft_length(self, batch_size: int) -> int:
        options = self._options
        if self._budget(batch_size) == 0:
            return 0
        gamma = options.gamma_small if batch_size <= options.small_batch else options.gamma_large
        if self._caps.ragged is Ragged.NATIVE:
            useful = max(options.saturation - batch_size, self._depth(batch_size))  # one row may use all free tokens
        else:
            useful = max(0, options.saturation // batch_size - 1)
        return self._caps.fit_draft_length(min(gamma, useful))

    def _depth(self, batch_size: int) -> int:
        """Return the last draft position that pays for tokens of confidence `SUREST`, if no token is free."""
        needed = self._roofline.plain_rate(batch_size) / self._roofline.saturation * (1 + self._options.margin)
        return 0 if needed >= 1 else math.floor(math.log(needed) / math.log(SUREST))
