"""The plain reference of the trim half, which tries every number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from specplug_batch.roofline import Roofline


def best_count(survivals: Sequence[float], rows: int, weight: float, rate: float, roofline: Roofline) -> int:
    """Return how many tokens to admit, likeliest first: the number with the greatest gain, the smallest among ties.

    The gain of a step is its expected number of emitted tokens minus the tokens that the same time yields elsewhere, at
    `rate` tokens per cost.  Maximising this gain at every step maximises tokens per cost in the long run (Dinkelbach,
    "On nonlinear fractional programming", 1967).  Maximising the ratio of each step alone does not: a poor step then
    spends too much, and a good one too little.

    Args:
        survivals: survival probabilities of all draft tokens, descending.
        rows: number of rows that decode.
        weight: number of requests that each row represents.
        rate: the server's long-run tokens per cost.
    """
    expected, best, gained = float(rows), 0, rows * weight - rate * roofline.cost(rows * weight)
    for count, survival in enumerate(survivals, 1):
        expected += survival
        gain = expected * weight - rate * roofline.cost((rows + count) * weight)
        if gain > gained:
            best, gained = count, gain
    return best
