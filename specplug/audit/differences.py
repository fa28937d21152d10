"""The first difference of two greedy outputs, and the gap of the two tokens' log-probabilities in the control.

The gap tells rounding from a mistake: where two tokens are all but equally likely, the order of summation decides, and
after that the texts have different contexts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specplug.audit.probe import Answer, Control
from specplug.testing.equality import Difference

SURPRISING = 0.01
"""Differences are a failure if so many of them would be less probable than this at the control's own rate."""


def first_difference(number: int, expected: Answer, actual: Answer) -> Difference | None:
    """Return the first token that differs, or None.

    The gap is infinite if one output ends where the other continues, or if the token is not among the control's
    likeliest ones, and NaN if the control gives no log-probabilities.
    """
    if expected.token_ids == actual.token_ids:
        return None
    pairs = enumerate(zip(expected.token_ids, actual.token_ids, strict=False))
    shorter = min(len(expected.token_ids), len(actual.token_ids))
    position = next((place for place, (wanted, found) in pairs if wanted != found), shorter)
    wanted, found = _at(expected.token_ids, position), _at(actual.token_ids, position)
    return Difference(number, position, wanted, found, _gap(expected, position, wanted, found))


def is_near_tie(difference: Difference, control: Control) -> bool:
    """Return whether rounding explains a difference."""
    return difference.gap < control.tolerance  # false for NaN


def noise(together: Sequence[Answer], alone: Sequence[Answer]) -> tuple[float, int]:
    """Return the largest difference of a log-probability after equal texts, and the number of texts that differ."""
    largest, differing = 0.0, 0
    for first, second in zip(together, alone, strict=True):
        differing += first.token_ids != second.token_ids
        tokens = zip(first.token_ids, second.token_ids, first.top_logprobs, second.top_logprobs, strict=False)
        for one, other, tops, other_tops in tokens:
            largest = max(largest, largest_gap(tops, other_tops))
            if one != other:
                break
    return largest, differing


def largest_gap(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference of log-probabilities of tokens that are in both."""
    gaps = (abs(one[token] - other[token]) for token in one.keys() & other.keys())
    return max((gap for gap in gaps if not math.isnan(gap)), default=0.0)


def surprise(differences: int, total: int, own: int, own_total: int) -> float:
    """Return Fisher's exact p-value that differences are more frequent than the control's own from itself."""
    from scipy.stats import fisher_exact

    if not differences:
        return 1.0
    counts = [[differences, total - differences], [own, own_total - own]]
    return float(fisher_exact(counts, alternative="greater")[1])


def _at(tokens: Sequence[int], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None


def _gap(expected: Answer, position: int, wanted: int | None, found: int | None) -> float:
    if not expected.top_logprobs:
        return math.nan
    if wanted is None or found is None:
        return math.inf
    top = expected.top_logprobs[position]
    return abs(top[wanted] - top[found]) if found in top and wanted in top else math.inf
