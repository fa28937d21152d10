"""The plain reference of the trim half: tries every number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from specplug_batch.roofline import Roofline


def best_count(survivals: Sequence[float], rows: int, weight: float, rate: float, roofline: Roofline) -> int:
    """Return how many tokens to admit, likeliest first: as many as gain most, of equal numbers the smallest.

    What is gained is what a step is expected to emit less what the same time brings elsewhere, `rate` tokens per cost:
    steps that gain most by this measure make the most tokens per cost in the long run (Dinkelbach, "On nonlinear
    fractional programming", 1967).  The best ratio of each step alone does not: a poor step then spends too much, and a
    good one too little.

    Args:
        survivals: of all draft tokens, descending.
        rows: how many decode.
        weight: requests that each row stands for.
        rate: tokens per cost that the server makes in the long run.
    """
    expected, best, gained = float(rows), 0, rows * weight - rate * roofline.cost(rows * weight)
    for count, survival in enumerate(survivals, 1):
        expected += survival
        gain = expected * weight - rate * roofline.cost((rows + count) * weight)
        if gain > gained:
            best, gained = count, gain
    return best
