"""The rate at which a server emits tokens, as a speed-up over plain decoding: what the time of a step is worth."""

from __future__ import annotations

MEMORY_STEPS = 48.0
MEMORY_ROWS = 768.0
"""Steps after which an observation counts a third: at least the first number, and enough for so many rows."""

_PRIOR_STEPS = 8.0
"""Steps like those of the nearest class, or without gain, with which the average of a class starts."""


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
