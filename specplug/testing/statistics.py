"""Statistical tests of observed counts against an exact distribution, for models too large to enumerate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specplug.errors import ContractError

MIN_EXPECTED = 5.0  # below this expected count per cell the chi-squared distribution is a poor approximation


def g_test(observed_counts: ArrayLike, expected_probs: ArrayLike) -> float:
    """Return the p-value of the G-test (log-likelihood ratio) that `observed_counts` were drawn from `expected_probs`.

    Outcomes of small expectation are pooled, smallest first, until every cell expects at least `MIN_EXPECTED`.  An
    observed outcome of probability 0 gives p = 0, regardless of the others.

    Args:
        observed_counts: [K] counts.
        expected_probs: [K], summing to 1.

    Raises:
        ContractError: the shapes differ, there are no counts, or the probabilities are not a distribution.
    """
    observed, probs = np.asarray(observed_counts, np.float64), np.asarray(expected_probs, np.float64)
    total = float(observed.sum())
    if observed.shape != probs.shape or observed.ndim != 1 or total <= 0:
        raise ContractError.build(
            "counts and probabilities do not fit",
            who="g_test",
            found=f"counts {observed.shape} of sum {total:g}, probabilities {probs.shape}",
            expected="two lists of one length, and at least one count",
        )
    if (probs < 0).any() or abs(probs.sum() - 1) > 1e-6:
        raise ContractError.build(
            "expected_probs is not a distribution",
            who="g_test",
            found=f"sum {probs.sum():g}",
            expected="sum 1, none below 0",
        )
    if observed[probs == 0].any():
        return 0.0
    cells = _pool(probs * total)
    expected = np.array([(probs[cell] * total).sum() for cell in cells])
    counts = np.array([observed[cell].sum() for cell in cells])
    seen = counts > 0
    statistic = 2.0 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())
    return _chi2_tail(statistic, len(cells) - 1)


def g_test_power(sample_size: int, expected_probs: ArrayLike, actual_probs: ArrayLike, alpha: float) -> float:
    """Return the probability that `g_test` gives p < `alpha` when `sample_size` counts follow `actual_probs`.

    Computed from the non-central chi-squared distribution; accurate enough to choose a sample size.
    """
    from scipy.stats import chi2, ncx2

    expected, actual = np.asarray(expected_probs, np.float64), np.asarray(actual_probs, np.float64)
    if (actual[expected == 0] > 0).any():
        return 1.0
    cells = _pool(expected * sample_size)
    if len(cells) < 2:
        return 0.0
    p = np.array([expected[cell].sum() for cell in cells])
    q = np.array([actual[cell].sum() for cell in cells])
    seen = q > 0
    shift = 2.0 * sample_size * float((q[seen] * np.log(q[seen] / p[seen])).sum())
    freedom = len(cells) - 1
    return float(ncx2.sf(chi2.isf(alpha, freedom), freedom, max(shift, 1e-12)))


def _pool(expected: NDArray[np.float64]) -> Sequence[NDArray[np.int64]]:
    """Group outcomes so that each group expects at least `MIN_EXPECTED`; a last small group joins its neighbour."""
    order = np.argsort(expected, kind="stable")
    order = order[expected[order] > 0]
    groups: list[list[int]] = [[]]
    for outcome in order.tolist():
        if expected[groups[-1]].sum() >= MIN_EXPECTED:
            groups.append([])
        groups[-1].append(outcome)
    if len(groups) > 1 and expected[groups[-1]].sum() < MIN_EXPECTED:
        groups[-2] += groups.pop()
    return [np.array(group, dtype=np.int64) for group in groups]


def _chi2_tail(statistic: float, freedom: int) -> float:
    """Return the probability of a larger statistic; 1 if a single cell leaves nothing to test."""
    from scipy.stats import chi2

    return float(chi2.sf(statistic, freedom)) if freedom else 1.0
