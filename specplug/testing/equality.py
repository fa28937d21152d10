"""Comparison of outputs: greedy ones token by token, but for near ties between logits, and sampled ones by G-tests.

Greedy outputs of two engines, or of one engine with and without speculation, must agree token for token.  The only
legitimate cause of a difference is a pair of logits so close that the order of summation decides.  Therefore both
logits are recomputed at the first differing token by a plain forward over the common prefix; a gap below the tolerance
counts as a near tie, and anything else is a failure.  After a near tie the texts have different contexts and are not
compared.  Near ties are rare: more than one in a hundred requests is a failure, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specplug.errors import ContractError

TOLERANCE = 1e-4
REQUESTS_PER_NEAR_TIE = 100

Forward = Callable[[Sequence[int]], Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first differing token of one request.

    Attributes:
        request: index into the compared requests.
        position: index into their outputs.
        expected, actual: the tokens there; None if that output has ended.
        gap: difference of their logits after the common prefix; infinite if an end cannot be compared with a token.
    """

    request: int
    position: int
    expected: int | None
    actual: int | None
    gap: float

    def __str__(self) -> str:
        one, other = ("the end" if it is None else f"token {it}" for it in (self.expected, self.actual))
        found = f"expected {one}, found {other}, logit gap {self.gap:.3g}"
        return f"request {self.request}, output token {self.position}: {found}"


@dataclass(frozen=True, slots=True)
class EqualityReport:
    """Result of a comparison.

    Attributes:
        total: number of requests compared.
        identical: requests whose outputs agree token for token.
        near_ties: first differences with a gap below `tolerance`.
        failures: all others.
        allowed_near_ties: most near ties that `assert_ok` accepts.
    """

    total: int
    identical: int
    near_ties: tuple[Difference, ...]
    failures: tuple[Difference, ...]
    allowed_near_ties: int
    tolerance: float

    @property
    def ok(self) -> bool:
        """Return whether there are no failures and no more near ties than allowed."""
        return not self.failures and len(self.near_ties) <= self.allowed_near_ties

    def assert_ok(self) -> None:
        """Raise an AssertionError that lists the differences, unless `ok`."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        lines = [
            f"greedy outputs: {self.identical} of {self.total} identical, {len(self.near_ties)} near ties "
            f"(gap < {self.tolerance:g}; {self.allowed_near_ties} allowed), {len(self.failures)} failures"
        ]
        lines += [f"  failure: {difference}" for difference in self.failures]
        lines += [f"  near tie: {difference}" for difference in self.near_ties]
        return "\n".join(lines)


def judge_greedy(
    forward: Forward,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    actual: Sequence[Sequence[int]],
    *,
    end_ids: Sequence[int] = (),
    tolerance: float = TOLERANCE,
    allowed_near_ties: int | None = None,
) -> EqualityReport:
    """Compare the outputs of each request.

    Args:
        forward: maps the ids of a whole context to the logits [..., V] of a plain forward, float32 or float64,
            processed as the engines process them; the last position is used.  Called once per differing request.
        prompts, expected, actual: ids per request; outputs without their prompts.
        end_ids: ids that end an output without being part of it.  If one output ends where the other continues, the
            likeliest of them is compared with the other's token.  Outputs that keep their end-of-sequence token need
            none.  Without any, a difference in length is a failure.
        tolerance: gaps below it are near ties.
        allowed_near_ties: most near ties to accept.  Default: one per 100 requests, rounded down, so that fewer than
            100 requests must all be identical.

    Lists that differ in length, or logits of less than float32 precision, raise `ContractError`.
    """
    if not len(prompts) == len(expected) == len(actual):
        raise ContractError.build(
            "lists of requests differ in length",
            who="judge_greedy",
            found=f"{len(prompts)} prompts, {len(expected)} expected, {len(actual)} actual outputs",
            expected="one of each per request",
        )
    differences = [
        _difference(forward, request, prompt, right, found, end_ids)
        for request, (prompt, right, found) in enumerate(zip(prompts, expected, actual, strict=True))
        if list(right) != list(found)
    ]
    return EqualityReport(
        total=len(prompts),
        identical=len(prompts) - len(differences),
        near_ties=tuple(d for d in differences if d.gap < tolerance),
        failures=tuple(d for d in differences if not d.gap < tolerance),  # a NaN is not a near tie
        allowed_near_ties=len(prompts) // REQUESTS_PER_NEAR_TIE if allowed_near_ties is None else allowed_near_ties,
        tolerance=tolerance,
    )


def _difference(
    forward: Forward,
    request: int,
    prompt: Sequence[int],
    expected: Sequence[int],
    actual: Sequence[int],
    end_ids: Sequence[int],
) -> Difference:
    """Find the first differing token of two outputs and compare the two logits there."""
    pairs = enumerate(zip_longest(expected, actual))
    position, tokens = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    if None in tokens and not end_ids:
        return Difference(request, position, *tokens, math.inf)
    logits = forward([*prompt, *expected[:position]])
    if logits.dtype not in (torch.float32, torch.float64):
        raise ContractError.build(
            "logits are too coarse to judge a near tie",
            who="judge_greedy",
            found=logits.dtype,
            expected="torch.float32",
            remedy="Run the comparison, engines and forward alike, in float32",
        )
    last = logits.reshape(-1, logits.shape[-1])[-1].double()
    one, other = (float(last[list(end_ids) if token is None else [token]].max()) for token in tokens)
    return Difference(request, position, *tokens, abs(one - other))


MIN_EXPECTED = 5.0  # below this expected count per cell the chi-squared distribution is a poor approximation


@dataclass(frozen=True, slots=True)
class GStatistic:
    """Log-likelihood ratio statistic; those of independent tests add up to that of all tests together.

    The value is approximately chi-squared distributed if the tested distribution is the true one.
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
    observed outcome of probability 0 gives an infinite value, and p = 0, regardless of the others.  The counts are [K];
    the probabilities [K] sum to 1.  Other shapes or probabilities, and no counts, raise `ContractError`.
    """
    observed = np.asarray(observed_counts, np.float64)
    probs = np.asarray(expected_probs, np.float64)
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
    return _statistic(observed, probs * total)


def g_test_power(sample_size: int, expected_probs: ArrayLike, actual_probs: ArrayLike, alpha: float) -> float:
    """Return the probability that `g_test` gives p < `alpha` when `sample_size` counts follow `actual_probs`.

    Computed from the non-central chi-squared distribution; accurate enough to choose a sample size.
    """
    return g_excess(sample_size, expected_probs, actual_probs).power(alpha)


def g_excess(sample_size: float, expected_probs: ArrayLike, actual_probs: ArrayLike) -> GStatistic:
    """Return the expected excess of `g_statistic` when `sample_size` counts follow `actual_probs`."""
    expected = np.asarray(expected_probs, np.float64)
    actual = np.asarray(actual_probs, np.float64)
    return _statistic(actual * sample_size, expected * sample_size)


def _statistic(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> GStatistic:
    if counts[expected == 0].any():
        return GStatistic(math.inf, max(1, int((expected > 0).sum()) - 1))
    cells = pool(expected)
    found, due = (np.array([values[cell].sum() for cell in cells]) for values in (counts, expected))
    seen = found > 0
    return GStatistic(2.0 * float((found[seen] * np.log(found[seen] / due[seen])).sum()), len(cells) - 1)


def pool(expected: NDArray[np.float64]) -> Sequence[NDArray[np.int64]]:
    """Group outcomes so that each group expects at least `MIN_EXPECTED`; a last small group joins its neighbour."""
    order = np.argsort(expected, kind="stable")
    order = order[expected[order] > 0]
    groups: list[list[int]] = [[]]
    due = 0.0  # expected by the last group
    for outcome, share in zip(order.tolist(), expected[order].tolist(), strict=True):
        if due >= MIN_EXPECTED:
            groups.append([])
            due = 0.0
        groups[-1].append(outcome)
        due += share
    if len(groups) > 1 and due < MIN_EXPECTED:
        groups[-2] += groups.pop()
    return [np.array(group, dtype=np.int64) for group in groups]
