"""Detection of repetition loops, in which any lookup drafts perfectly and inflates a small model's figures."""

from __future__ import annotations

from collections.abc import Sequence

PERIOD = 16
"""Longest period that counts as a loop."""

TIMES = 3
"""Number of consecutive repetitions of a stretch of `PERIOD` tokens that make a loop."""


def loop_mask(token_ids: Sequence[int], period: int = PERIOD, times: int = TIMES) -> list[bool]:
    """Return for each token whether it lies in a loop.

    A loop is a stretch of at least ``period * times`` tokens that repeats itself with a period of `period` or shorter:
    16 tokens three times in a row, or one token 48 times.
    """
    inside = [False] * len(token_ids)
    for step in range(1, period + 1):
        run = 0
        for place in range(step, len(token_ids) + 1):
            if place < len(token_ids) and token_ids[place] == token_ids[place - step]:
                run += 1
                continue
            if run + step >= period * times:
                inside[place - run - step : place] = [True] * (run + step)
            run = 0
    return inside
