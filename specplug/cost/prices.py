"""Prices of draft tokens from the seconds that steps take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from specplug.types.plan import MOST_PRICES, Price

_LEAST = 1e-6
"""Survival probability below which a price is none."""

_BEND = 0.1
"""Least height above the line, as a share of its rise."""


def prices_of(extra: Sequence[int], seconds: Sequence[float], rate: float) -> tuple[Price, ...]:
    """Return the prices at which a batch verifies the draft tokens that gain most.

    A token of survival probability s yields s tokens and lengthens the step.  It pays if that time yields fewer
    elsewhere, at the server's long-run rate.  Maximising expected tokens minus `rate` times seconds at every step
    maximises tokens per second in the long run (Dinkelbach, "On nonlinear fractional programming", 1967); maximising
    the rate of each step alone does not, because a poor step then verifies too much, and a good one too little.

    Where seconds do not rise evenly, the prices are those of the greatest convex function below them: a few tokens
    that cross a step in the costs do not pay, and many may.

    Args:
        extra: numbers of draft tokens, ascending; those up to the first one have no price.
        seconds: of the step with so many; in any unit.
        rate: tokens per second.
    """
    corners: list[tuple[int, float]] = []
    for point in zip(extra, seconds, strict=True):
        while len(corners) > 1 and _slope(corners[-2], point) <= _slope(corners[-2], corners[-1]):
            corners.pop()
        corners.append(point)
    slopes = [max(0.0, rate * _slope(one, other)) for one, other in pairwise(corners)]
    rising = accumulate(slopes, max)  # rounding lets slopes of a straight line fall
    found = [Price(survival, after) for survival, (after, _) in zip(rising, corners, strict=False)]
    return tuple([price for price in found if price.survival > _LEAST][-MOST_PRICES:])


def entry_and_prices(extra: Sequence[int], seconds: Sequence[float], rate: float) -> tuple[float, tuple[Price, ...]]:
    """Return the entry and the prices at which a batch verifies the draft tokens that gain most.

    Steps with few draft tokens may take much longer than one with none, and hardly less than those with many: on CPUs,
    where a step of one token multiplies by vectors, and at edges of CUDA graphs.  The greatest convex function below
    such costs would take the first tokens for nearly free.  That rise is the entry instead, which the tokens of a step
    have to yield together, see `StepPlan.entry`; it is 0 where the first tokens cost no more than those after them.
    Where costs go on to rise ever more slowly, the prices are those after the place that is farthest above the line
    from the first token to the last.  The arguments are those of `prices_of`; `extra` starts at 0.
    """
    if len(extra) > 2:
        rise, prices = rate * (seconds[1] - seconds[0]), prices_of(extra[1:], seconds[1:], rate)
        further = prices[0].survival if prices and prices[0].after == extra[1] else 0.0
        if rise > further * extra[1] + _LEAST:
            return _from_bend(extra, seconds, rate)
    return 0.0, prices_of(extra, seconds, rate)


def _from_bend(extra: Sequence[int], seconds: Sequence[float], rate: float) -> tuple[float, tuple[Price, ...]]:
    first, last = (extra[1], seconds[1]), (extra[-1], seconds[-1])
    above = [
        second - first[1] - _slope(first, last) * (count - first[0])
        for count, second in zip(extra, seconds, strict=True)
    ]
    bend = max(range(1, len(extra)), key=lambda place: above[place])
    if above[bend] < _BEND * (last[1] - first[1]):
        bend = 1
    prices = prices_of(extra[bend:], seconds[bend:], rate)
    entry = max(0.0, rate * (seconds[bend] - seconds[0]))  # a noisy estimate may fall
    if bend == 1 or not prices or prices[0].after > extra[bend]:
        return entry, prices
    return max(0.0, entry - prices[0].survival * extra[bend]), (Price(prices[0].survival), *prices[1:])


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
