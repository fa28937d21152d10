"""A fresh server beside a fresh one without speculation, from their first steps: what learning costs.

Each pair of servers answers chats that neither has seen, in turn.  After N of specplug's engine steps the ratio is the
time in which the other server emitted as many tokens of the same groups, to the time of those steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.real_models.arms import Answer
from benchmarks.real_models.statistics import Clock

STEPS = (64, 256, 1024)


def steps_of(answers: Sequence[Answer]) -> int:
    """Return the number of engine steps."""
    return sum(len(answer.timeline) for answer in answers)


def cumulative(mine: Sequence[Answer], plain: Sequence[Answer], steps: int, clock: Clock) -> float | None:
    """Return the ratio after a number of steps; None if there were fewer.

    Args:
        mine: the fresh server's answers, in order.
        plain: those without speculation, of the same groups.
    """
    column, left, used, needed = 0 if clock == "wall" else 1, steps, 0.0, 0.0
    for answer, truth in zip(mine, plain, strict=True):
        line, other = np.array(answer.timeline), np.array(truth.timeline)
        if left > len(line):
            used, needed, left = used + line[-1, column], needed + other[-1, column], left - len(line)
            continue
        used += line[left - 1, column]
        # Where texts differ, the other one may be shorter: it is compared up to its end.
        needed += float(np.interp(line[left - 1, 2], [0, *other[:, 2]], [0, *other[:, column]]))
        return needed / used
    return None


def rows(pairs: Sequence[tuple[Sequence[Answer], Sequence[Answer]]], clock: Clock) -> list[dict[str, Any]]:
    """Return the ratios of the pairs and their geometric mean, after each of `STEPS` that every pair reached."""
    found = []
    for steps in STEPS:
        ratios = [cumulative(mine, plain, steps, clock) for mine, plain in pairs]
        if ratios and None not in ratios:
            mean = float(np.exp(np.mean(np.log(np.array(ratios, float)))))
            found.append({"steps": steps, "servers": ratios, "mean": mean})
    return found
