"""The plan half where each draft token has a cost of its own: prices, which the trim half compares with confidences."""

from __future__ import annotations

import math
from typing import Any

from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import HostStats, StepPlan, StepReport
from specplug_batch.options import BatchOptions
from specplug_batch.roofline import Roofline

SUREST = 0.999
"""The highest confidence to assume: tokens with at least this confidence are nearly always accepted."""

_CLASSES = 16
"""Number of batch-size classes; the class of a batch size is its number of binary digits."""

_TRUST = 8.0
"""Number of steps without gain with which the average of a class starts."""

_MEMORY = 256.0
"""Steps after which a step counts a third."""


class RaggedPlanner(Planner):
    """Plans drafts as long as they can pay, and the prices that their tokens have to be worth.

    The time of a token would yield tokens elsewhere, at the server's long-run rate.  It is learnt per class of batch
    sizes as a speed-up over plain decoding, and taken for at least 1, so no token is verified that plain decoding
    would beat.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps
        self._roofline = Roofline.of(self._options)
        # Per class: tokens per row and step, and cost of a step, as multiples of their values without drafts.
        self._sums = [(_TRUST, _TRUST)] * _CLASSES

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length, the budget of the settings, and the prices."""
        requests = max(1, len(stats.requests))
        rate = self._roofline.plain_rate(requests) * max(1.0, self.speed_up(requests)) * (1.0 + self._options.margin)
        prices = self._roofline.prices(requests, rate)
        return StepPlan(self.longest_draft(requests), self._options.token_budget, prices=prices)

    def observe(self, report: StepReport) -> None:
        """Learn the speed-up of a step."""
        if not report.draft_length or not report.requests:
            return
        place, requests = _class_of(report.requests), report.requests
        tokens, cost = self._sums[place]
        keep, relative = 1.0 - 1.0 / _MEMORY, self._roofline.cost(requests + report.verified)
        relative /= self._roofline.cost(requests)
        self._sums[place] = tokens * keep + 1.0 + report.accepted / requests, cost * keep + relative

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length at this batch size, the only one planned."""
        options = self._options
        gamma = options.gamma_small if batch_size <= options.small_batch else options.gamma_large
        useful = max(options.saturation - batch_size, self._depth(batch_size))  # one row may use all free tokens
        return self._caps.fit_draft_length(min(gamma, useful))

    def status(self) -> dict[str, Any]:
        """Return what was learnt, as plain data."""
        return {}

    def speed_up(self, requests: int) -> float:
        """Return the learnt speed-up over plain decoding at about this batch size."""
        tokens, cost = self._sums[_class_of(requests)]
        return tokens / cost

    def _depth(self, batch_size: int) -> int:
        """Return the last draft position that pays for tokens of confidence `SUREST`, if no token is free."""
        needed = self._roofline.plain_rate(batch_size) / self._roofline.saturation * (1 + self._options.margin)
        return 0 if needed >= 1 else math.floor(math.log(needed) / math.log(SUREST))


def _class_of(batch_size: int) -> int:
    return min(batch_size.bit_length(), _CLASSES) - 1
