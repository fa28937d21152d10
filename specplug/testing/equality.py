"""Comparison of greedy outputs that tolerates near ties between logits.

Greedy outputs of two engines, or of one engine with and without speculation, must agree token for token.  The only
legitimate cause of a difference is a pair of logits so close that the order of summation decides.  Therefore both
logits are recomputed at the first differing token by a plain forward over the common prefix; a gap below the tolerance
counts as a near tie, and anything else is a failure.  After a near tie the texts have different contexts and are not
compared.  Near ties are rare: more than one in a hundred requests is a failure, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
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
        tokens = f"expected {_name(self.expected)}, found {_name(self.actual)}"
        return f"request {self.request}, output token {self.position}: {tokens}, logit gap {self.gap:.3g}"


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

    Raises:
        ContractError: the lists differ in length, or `forward` returns less than float32 precision.
    """
    if not len(prompts) == len(expected) == len(actual):
        raise ContractError.build(
            "lists of requests differ in length",
            who="judge_greedy",
            found=f"{len(prompts)} prompts, {len(expected)} expected, {len(actual)} actual outputs",
            expected="one of each per request",
        )
    differences = [
        _difference(forward, request, prompt, list(wanted), list(found), end_ids)
        for request, (prompt, wanted, found) in enumerate(zip(prompts, expected, actual, strict=True))
        if list(wanted) != list(found)
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
    expected: list[int],
    actual: list[int],
    end_ids: Sequence[int],
) -> Difference:
    """Find the first differing token of two outputs and compare the two logits there."""
    pairs = enumerate(zip(expected, actual, strict=False))
    shorter = min(len(expected), len(actual))
    position = next((place for place, (wanted, found) in pairs if wanted != found), shorter)
    wanted = expected[position] if position < len(expected) else None
    found = actual[position] if position < len(actual) else None
    if None in (wanted, found) and not end_ids:
        return Difference(request, position, wanted, found, float("inf"))
    logits = _last_logits(forward([*prompt, *expected[:position]]))
    gap = abs(_logit(logits, wanted, end_ids) - _logit(logits, found, end_ids))
    return Difference(request, position, wanted, found, gap)


def _last_logits(logits: Tensor) -> Tensor:
    if logits.dtype not in (torch.float32, torch.float64):
        raise ContractError.build(
            "logits are too coarse to judge a near tie",
            who="judge_greedy",
            found=logits.dtype,
            expected="torch.float32",
            remedy="Run the comparison, engines and forward alike, in float32",
        )
    return logits.reshape(-1, logits.shape[-1])[-1].double()


def _logit(logits: Tensor, token: int | None, end_ids: Sequence[int]) -> float:
    """Return the logit of a token, or of the likeliest end id if the token is None."""
    return float(logits[list(end_ids)].max() if token is None else logits[token])


def _name(token: int | None) -> str:
    return "the end" if token is None else f"token {token}"
