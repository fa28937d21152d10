"""Statistical tests of observed counts against an exact distribution, for models too large to enumerate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specplug.errors import ContractError

MIN_EXPECTED = 5.0  # below this expected count per cell the chi-squared distribution is a poor approximation


@dataclass(frozen=True, slots=True)
class GStatistic:
    """Log-likelihood ratio statistic; those of independent tests add up to that of all tests together.

    Attributes:
        value: approximately chi-squared distributed if the tested distribution is the true one.
        freedom: degrees of freedom.
    """

    value: float = 0.0
    freedom: int = 0

    @property
    def p(self) -> float:
        """Return the probability of a larger value; 1 if a single cell leaves nothing to test."""
        from scipy.stats import chi2

        return float(chi2.sf(self.value, self.freedom)) if self.freedom else 1.0

    def power(self, alpha: float) -> float:
        """Return the probability of p < `alpha`, for a value that is the expected excess over the true distribution."""
        from scipy.stats import chi2, ncx2

        if not self.freedom or math.isinf(self.value):
            return float(bool(self.freedom))
        return float(ncx2.sf(chi2.isf(alpha, self.freedom), self.freedom, max(self.value, 1e-12)))

    def __add__(self, other: GStatistic) -> GStatistic:
        return GStatistic(self.value + other.value, self.freedom + other.freedom)


def g_test(observed_counts: ArrayLike, expected_probs: ArrayLike) -> float:
    """Return the p-value of the G-test that `observed_counts` were drawn from `expected_probs`; see `g_statistic`."""
    return g_statistic(observed_counts, expected_probs).p


def g_statistic(observed_counts: ArrayLike, expected_probs: ArrayLike) -> GStatistic:
    """Return the statistic of the G-test that `observed_counts` were drawn from `expected_probs`.

    Outcomes of small expectation are pooled, smallest first, until every cell expects at least `MIN_EXPECTED`.  An
    observed outcome of probability 0 gives an infinite value, and p = 0, regardless of the others.

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
            who="g_statistic",
            found=f"counts {observed.shape} of sum {total:g}, probabilities {probs.shape}",
            expected="two lists of one length, and at least one count",
        )
    if (probs < 0).any() or abs(probs.sum() - 1) > 1e-6:
        raise ContractError.build(
            "expected_probs is not a distribution",
            who="g_statistic",
            found=f"sum {probs.sum():g}",
            expected="sum 1, none below 0",
        )
    if observed[probs == 0].any():
        return GStatistic(float("inf"), max(1, int((probs > 0).sum()) - 1))
    cells = pool(probs * total)
    expected = np.array([(probs[cell] * total).sum() for cell in cells])
    counts = np.array([observed[cell].sum() for cell in cells])
    seen = counts > 0
    return GStatistic(2.0 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum()), len(cells) - 1)


def g_test_power(sample_size: int, expected_probs: ArrayLike, actual_probs: ArrayLike, alpha: float) -> float:
    """Return the probability that `g_test` gives p < `alpha` when `sample_size` counts follow `actual_probs`.

    Computed from the non-central chi-squared distribution; accurate enough to choose a sample size.
    """
    return g_excess(sample_size, expected_probs, actual_probs).power(alpha)


def g_excess(sample_size: float, expected_probs: ArrayLike, actual_probs: ArrayLike) -> GStatistic:
    """Return the expected excess of `g_statistic` when `sample_size` counts follow `actual_probs`."""
    expected, actual = np.asarray(expected_probs, np.float64), np.asarray(actual_probs, np.float64)
    if (actual[expected == 0] > 0).any():
        return GStatistic(float("inf"), 1)
    cells = pool(expected * sample_size)
    p = np.array([expected[cell].sum() for cell in cells])
    q = np.array([actual[cell].sum() for cell in cells])
    seen = q > 0
    return GStatistic(2.0 * sample_size * float((q[seen] * np.log(q[seen] / p[seen])).sum()), len(cells) - 1)


def pool(expected: NDArray[np.float64]) -> Sequence[NDArray[np.int64]]:
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
