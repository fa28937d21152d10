"""Ratio of two sides' throughput over paired answers, and its interval.

The ratio is of the tokens per second of all answers together, as a server's operator counts them: of the baseline's
seconds to the tested side's, for the same tokens.  For a ratio R, the differences d = baseline - R * tested of the
pairs have the mean 0 if R is the true one, so that the interval holds every R which Student's t of these differences
does not reject, and what lies between them (Fieller, Journal of the Royal Statistical Society B 16, 1954).  For R = 1,
which decides the verdict, `specplug.tools.bench.sequential` says what the level rests on; for others it also takes
answers whose lengths and gains are not too skewed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specplug.tools.bench.sequential import FEWEST

EQUAL = 1.03
"""Sides whose ratio is shown to be within this and its inverse do not differ."""

_WIDEST = 1e6
"""Stands for an upper end that an interval does not have, and its inverse for a lower one."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as many tokens per second the tested side makes, of all pairs together.

    From `low` to `high` is the interval; None with fewer than `FEWEST` pairs.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """Return "no difference" where one beyond `EQUAL` is ruled out, "faster", "slower" or "no difference shown"."""
        if self.low is None or self.high is None:
            return "no difference shown"
        if self.low >= 1 / EQUAL and self.high <= EQUAL:
            return "no difference"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "no difference shown"

    @property
    def is_unequal(self) -> bool:
        """Return whether the interval is wholly beyond `EQUAL` or its inverse."""
        return self.low is not None and self.high is not None and (self.low > EQUAL or self.high < 1 / EQUAL)

    def is_within(self, percent: float) -> bool:
        """Return whether the interval ends within so many percent of the ratio, on both sides."""
        if self.low is None or self.high is None:
            return False
        return max(self.high - self.value, self.value - self.low) <= self.value * percent / 100

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({_bound(self.low)} to {_bound(self.high)})"


def _bound(value: float) -> str:
    """Return an end of an interval, to more places where verdicts part."""
    return "over 1000" if value > 1000 else f"{value:.3f}" if 0.95 < value < 1.05 else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Spread:
    """The means of both sides' seconds, [2], the tested side's first, and what the pairs of each kind depart from them.

    Each of `kinds` has its pairs' residuals, [pairs, 2], whose squares add up to its part of the variances of the
    means, and its degrees of freedom.  The prompts of a run have the kinds in proportion, so that what differs between
    kinds is no uncertainty.
    """

    means: Any
    kinds: Sequence[tuple[Any, int]]

    def difference(self, ratio: float) -> float:
        """Return the mean of baseline - ratio * tested, in seconds."""
        return float(self.means[1] - ratio * self.means[0])

    def variance(self, ratio: float) -> float:
        """Return the variance of `difference`."""
        return math.fsum(self._parts(ratio))

    def freedom(self, ratio: float) -> float:
        """Return the degrees of freedom of `variance`, by Satterthwaite (Biometrics Bulletin 2, 1946)."""
        parts = self._parts(ratio)
        squares = math.fsum(part**2 / free for part, (_, free) in zip(parts, self.kinds, strict=True))
        return math.fsum(parts) ** 2 / squares if squares else float(sum(free for _, free in self.kinds))

    def _parts(self, ratio: float) -> list[float]:
        return [float(((rest[:, 1] - ratio * rest[:, 0]) ** 2).sum()) for rest, _ in self.kinds]


def spread_of(seconds: Sequence[tuple[str, float, float]]) -> Spread:
    """Return the spread of pairs: kind, the tested side's seconds and the baseline's.

    Kinds of a single pair count as one kind; if there is only one, its pair departs from the mean of all.
    """
    import numpy as np

    counts = Counter(kind for kind, *_ in seconds)
    kinds: dict[str | None, list[tuple[float, float]]] = {}
    for kind, tested, baseline in seconds:
        kinds.setdefault(kind if counts[kind] > 1 else None, []).append((tested, baseline))
    means = np.mean([pair for pairs in kinds.values() for pair in pairs], 0)
    parts = []
    for pairs in kinds.values():
        free = max(1, len(pairs) - 1)
        rest = np.array(pairs) - (np.mean(pairs, 0) if len(pairs) > 1 else means)
        parts.append((rest * math.sqrt(len(pairs) / free) / len(seconds), free))
    return Spread(means, parts)


def interval(seconds: Sequence[tuple[str, float, float]], critical: float | None) -> Ratio:
    """Return the ratio of pairs: kind, the tested side's seconds and the baseline's, for the same tokens.

    It has an interval if there is a critical value, a quantile of the normal distribution, and there are `FEWEST`.
    """
    spread = spread_of(seconds)
    tested, baseline = map(float, spread.means)
    ratio = baseline / tested
    if critical is None or len(seconds) < FEWEST:
        return Ratio(ratio)
    from scipy.special import ndtr, stdtrit

    reach = float(stdtrit(spread.freedom(1.0), ndtr(-critical)) ** 2)
    (own, both), (_, other) = sum(rest.T @ rest for rest, _ in spread.kinds).tolist()
    # The ratios R with square * R ** 2 - 2 * middle * R + rest <= 0
    square = tested**2 - reach * own
    middle = tested * baseline - reach * both
    rest = baseline**2 - reach * other
    root = math.sqrt(max(0.0, middle**2 - square * rest))
    low = (middle - root) / square if square > 0 else rest / (middle + root) if rest > 0 else 0.0
    high = (middle + root) / square if square > 0 else _WIDEST
    low = min(ratio, max(1 / _WIDEST, low))
    high = max(ratio, min(_WIDEST, high))
    return Ratio(*(round(each, 9) for each in (ratio, low, high)))  # sides that are equal have exactly 1
