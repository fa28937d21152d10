"""CostPlanner: what plan halves share that decide by the costs of steps and by the rate of their server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from specplug.cost.rate import ServerRate
from specplug.cost.step_costs import Array, Curve, StepCosts
from specplug.interfaces import Planner
from specplug.types.plan import HostStats, StepCost, StepReport

_MOST_REPORTS = 256
"""Newest reports that are kept, where a plan half decides seldom."""


class CostPlanner(Planner):
    """Keeps the costs of steps and the rate of a server; subclasses learn and price when they decide.

    Args:
        assumed: the cost of a step by its tokens, see `StepCosts`.
    """

    def __init__(self, assumed: Curve) -> None:
        self._costs = StepCosts(assumed)
        self._rate = ServerRate()
        self._reports: deque[StepReport] = deque(maxlen=_MOST_REPORTS)  # since the newest decision

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Start from steps that were timed."""
        self._costs.calibrate(costs)

    def observe(self, report: StepReport) -> None:
        """Keep a step's results for the next decision."""
        self._reports.append(report)

    def _take_reports(self) -> list[StepReport]:
        """Correct the costs by the steps since the newest decision; return those in which any request might draft."""
        reports = list(self._reports)
        self._reports.clear()
        self._costs.observe([report.cost for report in reports if report.cost is not None])
        return [report for report in reports if report.requests]

    def _learn_rate(self, reports: Sequence[StepReport], cost: float) -> tuple[int, float]:
        """Enter steps whose seconds are on average this multiple of those of plain decoding.

        Returns:
            requests: the average batch size.
            accepted: the draft tokens of a request that a step accepted, on average.
        """
        requests = round(sum(report.batch_size for report in reports) / len(reports))
        accepted = sum(report.accepted for report in reports) / sum(report.requests for report in reports)
        self._rate.observe(requests, 1.0 + accepted, cost, len(reports))
        return requests, accepted

    def _seconds(self, stats: HostStats, tokens: Sequence[int], draft_lengths: Sequence[int]) -> Array:
        """Return the seconds of steps of this batch, [n] float64; see `StepCosts.seconds_beside_prompts`."""
        requests = len(stats.requests)
        last = stats.last_step
        context = last.context_tokens * requests / last.requests if last is not None and last.requests else 0.0
        return self._costs.seconds_beside_prompts(requests, context, tokens, draft_lengths)
