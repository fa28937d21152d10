"""The plan half: the widest drafts that can pay at the present batch size."""

from __future__ import annotations

import math

from specplug.interfaces import Planner, PluginContext
from specplug.types.caps import Ragged
from specplug.types.plan import HostStats, StepPlan
from specplug_batch.options import BatchOptions
from specplug_batch.roofline import Roofline

SUREST = 0.999
"""The highest confidence to reckon with: what is drafted at least this surely is accepted nearly always."""


class BatchPlanner(Planner):
    """Plans `gamma_small` or `gamma_large`, fitted to what the engine can run, and no more than can pay.

    Where the engine verifies drafts of different lengths at the cost of their tokens, the trim half chooses which ones,
    so that the width only has to be wide enough.  Where rows are padded the width itself is what a step costs: then it
    is as wide as the step's tokens stay free.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._roofline = Roofline.of(self._options)
        self._caps = context.caps
        self._draft_lengths: dict[int, int] = {}  # by batch size: few, and asked at every step

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the width, with the caps that requests have set for themselves."""
        batch_size = self._options.batch_size or max(1, len(stats.requests))
        draft_length = self._draft_lengths.get(batch_size)
        if draft_length is None:
            draft_length = self._draft_lengths[batch_size] = self._draft_length(batch_size)
        caps = {r.request_id: r.cap for r in stats.requests if r.cap is not None and r.cap < draft_length}
        return StepPlan(draft_length, self._budget(batch_size), caps)

    def _budget(self, batch_size: int) -> int | None:
        """Return the most draft tokens of the batch.  Where only that bounds the step, it is what stays free."""
        stated = self._options.token_budget
        if stated is not None or not self._caps.verifies_budget:
            return stated
        return max(0, self._options.saturation - batch_size)

    def _draft_length(self, batch_size: int) -> int:
        options = self._options
        gamma = options.gamma_small if batch_size <= options.small_batch else options.gamma_large
        if self._caps.ragged is Ragged.NATIVE:
            useful = max(options.saturation - batch_size, self._depth(batch_size))  # one row may use all that is free
        else:
            useful = max(0, options.saturation // batch_size - 1)
        return self._caps.fit_draft_length(min(gamma, useful))

    def _depth(self, batch_size: int) -> int:
        """Return the last place of a draft of the surest tokens that pays where no token is free."""
        needed = self._roofline.plain_rate(batch_size) / self._roofline.saturation * (1 + self._options.margin)
        return 0 if needed >= 1 else math.floor(math.log(needed) / math.log(SUREST))
