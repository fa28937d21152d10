"""What plan halves share that decide by costs: the costs of steps, and the rate at which their server emits tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from specplug.cost.corrections import Array
from specplug.cost.step_costs import Curve, StepCosts
from specplug.interfaces import Planner
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import StepCost

MEMORY_STEPS = 48.0
MEMORY_ROWS = 768.0
"""Steps after which an observation counts a third: at least the first number, and enough for so many rows."""

_PRIOR_STEPS = 8.0
"""Steps like those of the nearest class, or without gain, with which the average of a class starts."""

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

    def _added_to_plain(self, stats: HostStats, tokens: Sequence[int], draft_lengths: Sequence[int]) -> Array:
        """Return what steps of this batch add to the first, plain one, in its seconds: [n] float64.

        Arguments are those of `StepCosts.seconds_beside_prompts`.
        """
        requests = len(stats.requests)
        last = stats.last_step
        context = last.context_tokens * requests / last.requests if last is not None and last.requests else 0.0
        seconds = self._costs.seconds_beside_prompts(requests, context, tokens, draft_lengths)
        added: Array = seconds / seconds[0] - 1.0
        return added


class ServerRate:
    """Slow averages of tokens and of costs per class of batch sizes, whose ratio is the server's rate.

    Maximising tokens less `rate` times seconds at every step maximises tokens per second in the long run (Dinkelbach,
    "On nonlinear fractional programming", 1967); maximising the ratio of each step alone does not, since a poor step
    then verifies too much, and a good one too little.  The class of a batch size is its number of binary digits.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float]] = {}  # by class: tokens, and cost

    def observe(self, requests: int, tokens: float, cost: float, steps: int = 1) -> None:
        """Enter steps of a batch size.

        Args:
            requests: rows of each.
            tokens: tokens that a row emitted per step, on average.
            cost: seconds of a step, on average, as a multiple of those of plain decoding.
            steps: their number.
        """
        before, spent = self._sums.get(requests.bit_length(), (_PRIOR_STEPS * self.speed_up(requests), _PRIOR_STEPS))
        keep = kept_share(requests, steps)
        self._sums[requests.bit_length()] = before * keep + tokens * steps, spent * keep + cost * steps

    def speed_up(self, requests: int) -> float:
        """Return tokens per second as a multiple of plain decoding's, at least 1; at first the nearest class's."""
        if not self._sums:
            return 1.0
        tokens, cost = self._sums[min(self._sums, key=lambda each: abs(each - requests.bit_length()))]
        return max(1.0, tokens / cost)


def kept_share(requests: int, steps: int) -> float:
    """Return what share of earlier observations still counts after so many steps of so many requests."""
    memory = max(MEMORY_STEPS, MEMORY_ROWS / max(requests, 1))
    return float((1.0 - 1.0 / memory) ** steps)
