"""How much faster than plain decoding steps with drafts turned out to be, by batch size."""

from __future__ import annotations

_CLASSES = 16
"""Number of batch-size classes; the class of a batch size is its number of binary digits."""

_TRUST = 8.0
"""Number of steps without gain with which the average of a class starts."""

_MEMORY_STEPS, _MEMORY_ROWS = 48.0, 768.0
"""Steps after which one counts a third: at least the first number, and enough for so many rows."""


class Gains:
    """The speed-up of drafting per class of batch sizes: tokens per row and step over the relative cost of the steps.

    A ratio of averages, and no average of ratios: a long step counts as much as it takes.
    """

    def __init__(self) -> None:
        self._sums = [(_TRUST, _TRUST)] * _CLASSES
        self._counts = [0] * _CLASSES

    def observe(self, requests: int, tokens: float, cost: float) -> None:
        """Enter a step.

        Args:
            requests: its rows.
            tokens: tokens that each row emitted, on average.
            cost: of the step, as a multiple of one without drafts.
        """
        place = _class_of(requests)
        keep = 1.0 - 1.0 / max(_MEMORY_STEPS, _MEMORY_ROWS / requests)
        all_tokens, all_cost = self._sums[place]
        self._sums[place] = all_tokens * keep + tokens, all_cost * keep + cost
        self._counts[place] += 1

    def speed_up(self, requests: int) -> float:
        """Return the speed-up at about this batch size, 1 at first."""
        tokens, cost = self._sums[_class_of(requests)]
        return tokens / cost

    def is_known(self, requests: int) -> bool:
        """Return whether as many steps were entered at about this batch size as the average starts with."""
        return self._counts[_class_of(requests)] >= _TRUST


def _class_of(requests: int) -> int:
    return min(requests.bit_length(), _CLASSES) - 1
