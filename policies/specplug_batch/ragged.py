"""The plan half where each draft token has a cost of its own: a cost curve, with which the trim half cuts each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specplug.cost.planner import CostPlanner
from specplug.interfaces import PluginContext
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import MAX_COST_POINTS, MAX_DRAFT_TOKENS, CostPoint, StepCost, StepPlan
from specplug_batch.options import BatchOptions
from specplug_batch.pace import DOES_NOT_PAY, PLAIN_STEPS, TRIED_STEPS, Doubt, DraftingGain, Pace, Trials


class RaggedPlanner(CostPlanner):
    """Plans the longest drafts and what their tokens cost, in tokens that the server would emit in the same time.

    The trim half then verifies, at every step, the draft tokens whose survival probabilities exceed their cost by most.
    Drafts are not made at all while making them costs more than they gain.
    """

    reads_requests = False

    def __init__(self, context: PluginContext) -> None:
        options: BatchOptions = context.options or BatchOptions()
        super().__init__(options.cost)
        self._budget = options.token_budget
        self._longest = context.caps.max_draft_length
        self._drafting = DraftingGain()
        self._pace = Pace()
        self._trials = Trials()
        self._doubt = Doubt()
        self._draft_tokens = np.zeros(1)  # the newest curve: draft tokens,
        self._added = np.zeros(1)  # and the seconds that they add, relative to plain decoding
        self._drafting_cost = 0.0  # of a step that drafts and verifies nothing, relative to plain decoding, less 1
        self._padding = 1.0  # tokens that a step runs for each draft token that it keeps, lately
        self._plan = StepPlan(0)
        self._requests = 0
        self._rest_end = 0  # the first step that may draft again

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the newest plan; it is made anew every few steps, and when the batch changes."""
        requests = len(stats.requests)
        left = self._rest_end - stats.step
        if left > 0 and self._requests <= 2 * requests <= 4 * self._requests:
            # Requests that come and go end no rest.
            return replace(self._plan, num_steps=self._unreported(left))
        if self._pace.is_due(stats.step, requests) and requests:
            self._decide(stats)
        if not self._costs.is_timed and (trial := self._trials.take_length(requests, (self._longest, 0))) is not None:
            return StepPlan(trial, self._budget)
        return self._plan

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        super().calibrate(costs)
        self._pace.set_next(0)

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length, the only one planned but 0."""
        return self._longest

    def status(self) -> dict[str, Any]:
        """Return what is planned and the figures that it follows from, as plain data."""
        if not self._requests:
            return {"why": "nothing was planned yet"}
        speed_up = self._rate.speed_up(self._requests)
        why = f"at {self._requests} requests decoding with drafts emits {speed_up:.2f} times as much as without"
        if not self._plan.draft_length:
            gain = f"{self._drafting.gain:.3f} tokens per row and step"
            why = f"off: drafts gain {gain}, less than making them costs"
        return {
            "why": why,
            "requests": self._requests,
            "draft_length": self._plan.draft_length,
            "speed_up": round(speed_up, 3),
            "drafting_cost": round(self._drafting_cost, 4),
            "costs": [[point.draft_tokens, round(point.cost, 3)] for point in self._plan.costs],
            "basis": self._costs.basis,
        }

    def _decide(self, stats: HostStats) -> None:
        self._learn()
        self._requests = len(stats.requests)
        costs = self._curve(stats)
        was_resting = self._drafting.is_resting
        rest = self._drafting.plan_rest(self._requests, self._drafting_cost * self._rate.speed_up(self._requests))
        if rest and (self._costs.basis == "assumed" or not self._costs.knows(drafts=False)):
            rest = min(rest, PLAIN_STEPS)
        if rest or was_resting:
            self._pace.set_next(rest or TRIED_STEPS)
        self._rest_end = stats.step + rest
        if rest:
            self._plan = StepPlan(0, num_steps=self._unreported(rest), why=DOES_NOT_PAY)
        else:
            self._plan = StepPlan(self._longest, self._budget, costs=costs)

    def _unreported(self, steps: int) -> int:
        """Return how many steps of a rest a plan is for: one at a time while it is not known what plain steps take."""
        return steps if self._costs.knows(drafts=False) else 1

    def _learn(self) -> None:
        """Enter the results since the decision before."""
        drafted = [report for report in self._take_reports() if report.draft_length]
        if not drafted:
            return
        added = float(np.interp([_verified(report) for report in drafted], self._draft_tokens, self._added).mean())
        requests, accepted = self._learn_rate(drafted, 1.0 + self._drafting_cost + added)
        kept = sum(report.verified for report in drafted)
        if kept:
            self._padding += (max(1.0, sum(map(_verified, drafted)) / kept) - self._padding) / 2
        spent = added * self._rate.speed_up(requests)
        self._doubt.observe(requests, accepted, spent, len(drafted))
        self._drafting.observe(requests, accepted - spent, len(drafted))

    def _curve(self, stats: HostStats) -> tuple[CostPoint, ...]:
        """Return the cost curve of a batch, and keep the seconds that it follows from."""
        requests = len(stats.requests)
        all_tokens = requests * self._longest
        sizes = {size - requests for size in self._costs.sizes if requests < size < requests + all_tokens}
        even = {round(requests * share) for share in _TOKENS_PER_ROW}
        grid = sorted({0, 1, 2, 3, all_tokens, *(each for each in sizes | even if each <= all_tokens)})
        grid = grid[:: -(-len(grid) // (MAX_COST_POINTS - 2))]
        ends = {all_tokens, 2 * all_tokens}  # the batch may grow before the next decision
        grid = sorted({min(each, MAX_DRAFT_TOKENS) for each in {*grid, *ends}})
        tokens = [requests, *(requests + round(each * self._padding) for each in grid)]
        _, drafting, *verifying = self._added_to_plain(stats, tokens, [0, *[self._longest] * len(grid)]).tolist()
        self._drafting_cost = max(0.0, drafting - self._costs.noise)
        self._draft_tokens = np.array(grid, np.float64)
        self._added = np.array([0.0, *(each - drafting for each in verifying)])
        per_token = requests * self._rate.speed_up(requests) * self._doubt.factor
        return tuple(map(CostPoint, grid, (self._added * per_token).tolist()))


_TOKENS_PER_ROW = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Draft tokens per row at which the curve has points beside the sizes that were timed."""


def _verified(report: StepReport) -> int:
    """Return the draft tokens that a step ran, which may be more or less than what the planner's process knows."""
    if report.cost is None:
        return report.verified
    return report.cost.tokens - report.cost.requests - report.cost.prompt_tokens
