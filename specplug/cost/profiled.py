"""The cost of a step by its tokens, from steps that an engine profiled before it served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from specplug.types.plan import StepCost

Curve = Callable[[float], float]
"""Cost of a step by its number of tokens, in any unit."""


def curve_of(costs: Sequence[StepCost]) -> Curve | None:
    """Return the seconds of a step by its tokens, which never fall; None if fewer than two sizes were profiled.

    Between sizes it is linear, and beyond the largest it goes on as before.  Requests and context do not matter: the
    steps that an engine profiles have as many requests as they can, of one context length, so what either costs cannot
    be told apart from what tokens cost.
    """
    profiled: defaultdict[int, list[float]] = defaultdict(list)
    for cost in costs:
        if 0 < cost.seconds < inf:
            profiled[cost.tokens].append(cost.seconds)
    if len(profiled) < 2:
        return None
    sizes = np.array(sorted(profiled), np.float64)
    seconds = np.maximum.accumulate([float(np.median(profiled[size])) for size in sorted(profiled)])
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])

    def curve(tokens: float) -> float:
        return float(np.interp(tokens, sizes, seconds) + slope * max(0.0, tokens - sizes[-1]))

    return curve
