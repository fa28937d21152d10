"""A fresh server beside a fresh one without speculation, from their first steps: what learning costs.

Each pair of servers answers chats that neither has seen, in turns: of a few steps where an engine's arms can, else of
whole groups.  After N of specplug's engine steps the ratio is the time in which the other server emitted as many tokens
of the same groups, to the time of those steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.real_models.arms import Answer
from benchmarks.real_models.statistics import Clock, over_pairs

Pair = tuple[Sequence[Answer], Sequence[Answer]]
"""The answers of a fresh server and of one without speculation, of the same groups, in order."""


def steps_of(answers: Sequence[Answer]) -> int:
    """Return the number of engine steps after prefills."""
    return sum(len(answer.timeline) - answer.prefill_steps for answer in answers)


def spent(mine: Sequence[Answer], plain: Sequence[Answer], steps: int, clock: Clock) -> tuple[float, float] | None:
    """Return the seconds that the other server needed for the tokens of a number of steps, and those of the steps.

    It is None if there were fewer steps.

    Args:
        mine: the fresh server's answers, in order.
        plain: those without speculation, of the same groups.
    """
    column, left, used, needed = 0 if clock == "wall" else 1, steps, 0.0, 0.0
    for answer, truth in zip(mine, plain, strict=True):
        if not (answer.timeline and truth.timeline):  # one token, without its prefill
            continue
        line, other = np.array(answer.timeline), np.array(truth.timeline)
        if left > len(line):
            used, needed, left = used + line[-1, column], needed + other[-1, column], left - len(line)
            continue
        used += line[left - 1, column]
        # Where texts differ, the other one may be shorter: it is compared up to its end.
        needed += float(np.interp(line[left - 1, 2], [0, *other[:, 2]], [0, *other[:, column]]))
        return needed, used
    return None


def rows(pairs: Sequence[Pair], clock: Clock, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return the ratios of the pairs and their geometric mean, for ranges of steps that every pair reached.

    The ranges go from the first step to each of `steps`, and from each to the next.
    """
    ranges = [(0, end) for end in steps] + list(itertools.pairwise(steps))
    found = []
    for first, last in ranges:
        taken = [(spent(*pair, first, clock) if first else (0.0, 0.0), spent(*pair, last, clock)) for pair in pairs]
        ratios = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in taken if a is not None and b is not None]
        if ratios and len(ratios) == len(pairs):
            found.append({"steps": [first + 1, last], "servers": ratios, "mean": over_pairs(ratios)})
    return found
