"""How much faster than plain decoding steps with drafts turned out to be, by batch size."""

from __future__ import annotations

_TRUST = 8.0
"""Number of steps like those of the nearest class, or without gain, with which the average of a class starts."""

_KNOWN_ROWS = 128
"""Least number of rows, of all steps together."""

_MEMORY_STEPS, _MEMORY_ROWS = 48.0, 768.0
"""Steps after which one counts a third: at least the first number, and enough for so many rows."""

_REMEMBERED_ROWS = 16.0
"""Rows that earlier observations count for at least, so that one probe of few rows does not decide alone."""


def kept_share(rows: float, steps: int, known: float) -> float:
    """Return what share of earlier observations still counts beside those of a step with so many rows.

    What was observed ages faster in steps without drafts: after many of them, probes tell what drafts are worth.

    Args:
        rows: with drafts.
        steps: since the observation before.
        known: rows that the earlier observations count for.
    """
    aged = max((1.0 - 1.0 / _MEMORY_STEPS) ** max(0, steps - 1), min(1.0, _REMEMBERED_ROWS / max(known, 1.0)))
    return (1.0 - 1.0 / max(_MEMORY_STEPS, _MEMORY_ROWS / rows)) * aged


class SpeedUps:
    """The speed-up of drafting per class of batch sizes: tokens per row and step over the relative cost of the steps.

    A ratio of averages, and no average of ratios: a long step counts as much as it takes.  The class of a batch size is
    its number of binary digits.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float, float]] = {}  # by class: tokens, cost, and how many were entered

    def observe(self, requests: int, tokens: float, cost: float, *, share: float = 1.0, steps: int = 1) -> None:
        """Enter a step.

        Args:
            requests: its rows.
            tokens: tokens that each row that might draft emitted, on average.
            cost: of the step, as a multiple of one without drafts, if all rows draft as much as those.
            share: the rows that might draft, as a share of all.
            steps: since the step entered before; what was entered ages in steps without drafts, too.
        """
        first = _TRUST * self.speed_up(requests), _TRUST, 0.0
        all_tokens, all_cost, count = self._sums.get(requests.bit_length(), first)
        keep = kept_share(requests * share, steps, all_cost * requests * share)
        self._sums[requests.bit_length()] = all_tokens * keep + tokens, all_cost * keep + cost, count + share

    def speed_up(self, requests: int) -> float:
        """Return the speed-up at about this batch size, that of the nearest class at first, or 1."""
        if not self._sums:
            return 1.0
        tokens, cost, _ = self._sums[min(self._sums, key=lambda each: abs(each - requests.bit_length()))]
        return tokens / cost

    def forget(self) -> None:
        """Keep the averages as a first guess only."""
        self._sums = {place: (_TRUST * tokens / cost, _TRUST, 0.0) for place, (tokens, cost, _) in self._sums.items()}

    def is_known(self, requests: int) -> bool:
        """Return whether enough was entered at about this batch size to tell a gain from a loss."""
        count = self._sums.get(requests.bit_length(), (0.0, 0.0, 0.0))[2]
        return count >= _TRUST and count * requests >= _KNOWN_ROWS
