"""Distributions of the next token, and tests of observed tokens against them.

The tokens after every context that occurred often enough are tested against the distribution after that context, and
the tests' statistics are added up, because tokens after different contexts are independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from specplug.testing.statistics import MIN_EXPECTED, GStatistic, g_excess, g_statistic, pool

OTHER = -1
"""Stands for all tokens that are not among the likeliest ones."""

Context = tuple[int, ...]
Distribution = Mapping[int, float]


def next_tokens(outputs: Iterable[Sequence[int]], least: int) -> dict[Context, Counter[int]]:
    """Return the counts of the token after every context that at least `least` outputs share."""
    found: dict[Context, Counter[int]] = {}
    for tokens in outputs:
        for place, token in enumerate(tokens):
            found.setdefault(tuple(tokens[:place]), Counter())[token] += 1
    return {context: counts for context, counts in found.items() if counts.total() >= least}


def from_logprobs(top: Mapping[int, float], temperature: float, top_k: int) -> Distribution:
    """Return the sampling distribution, by the log-probabilities of the likeliest tokens at temperature 1.

    Exact for `top_k` up to the number of log-probabilities at any temperature, and without `top_k` at temperature 1,
    where the rest of the mass is that of `OTHER`.
    """
    if not top_k:
        assert temperature == 1, "the mass of tokens that are not listed is known at temperature 1 only"
        probs = {token: math.exp(logprob) for token, logprob in top.items()}
        return {**probs, OTHER: max(0.0, 1 - sum(probs.values()))}
    likeliest = sorted(top, key=lambda token: -top[token])[:top_k]
    highest = top[likeliest[0]]
    weights = {token: math.exp((top[token] - highest) / temperature) for token in likeliest}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def against_exact(counts: Counter[int], distribution: Distribution) -> GStatistic:
    """Return the G-statistic of observed tokens against a distribution."""
    tokens = [token for token in distribution if token != OTHER]
    observed = [counts[token] for token in tokens]
    probs = np.array([*(distribution[token] for token in tokens), distribution.get(OTHER, 0.0)])
    return g_statistic([*observed, counts.total() - sum(observed)], probs / probs.sum())


def against_sample(counts: Counter[int], control: Counter[int]) -> GStatistic:
    """Return the G-statistic that two samples are from one distribution."""
    tokens = sorted({*counts, *control})
    table = np.array([[sample[token] for token in tokens] for sample in (counts, control)], np.float64)
    shares = table.sum(0) / table.sum()
    cells = pool(shares * table.sum(1).min())
    pooled = np.array([[row[cell].sum() for cell in cells] for row in table])
    expected = pooled.sum(1, keepdims=True) * pooled.sum(0) / pooled.sum()
    seen = pooled > 0
    return GStatistic(2 * float((pooled[seen] * np.log(pooled[seen] / expected[seen])).sum()), len(cells) - 1)


def detectable(tested: Sequence[tuple[float, Distribution]], alpha: float, power: float) -> float | None:
    """Return the smallest share of forced tokens that the tests together find with probability `power`.

    The departure is that of a verifier that accepts a draft on this share of the draws, whatever the target says, where
    the draft is the likeliest token.

    Args:
        tested: sample size and distribution of each test.

    Returns:
        The share, or None if even a text of likeliest tokens alone would not be found.
    """

    def found(share: float) -> bool:
        total = GStatistic()
        for size, distribution in tested:
            probs = np.array([*distribution.values()])
            probs = probs / probs.sum()
            forced = np.zeros(len(probs))
            forced[probs.argmax()] = 1
            total += g_excess(size, probs, (1 - share) * probs + share * forced)
        return total.power(alpha) >= power

    low, high = 0.0, 1.0
    if not found(high):
        return None
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


LEAST_SAMPLES = int(5 * MIN_EXPECTED)
"""Outputs that must share a context for the tokens after it to be tested."""
