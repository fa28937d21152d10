"""The newest measurements of like steps, and how far they are from a fit."""

from __future__ import annotations

from collections import deque
from math import log

import numpy as np

from specplug.cost.shape import LEAST, Array

CELL_SIZE = 24
"""Number of newest measurements that a correction is made from."""

AGREEING = 0.2
"""Largest distance of a logarithm from the median of its cell at which it counts."""

_TRUST = 0.5
"""Least number of measurements at which a correction counts half."""


class Cell:
    """The newest measurements of steps of one draft length and about one batch size.

    Attributes:
        known: the number of measurements and their correction under the newest fit, once computed.
    """

    def __init__(self) -> None:
        self.known: tuple[int, float] | None = None
        self._rows: deque[Array] = deque(maxlen=CELL_SIZE)
        self._logs: deque[float] = deque(maxlen=CELL_SIZE)

    def add(self, row: Array, seconds: float) -> None:
        """Add the terms of a step, [NUM_TERMS], and its seconds; the oldest measurement may drop out."""
        self._rows.append(row)
        self._logs.append(log(seconds))
        self.known = None

    def __len__(self) -> int:
        return len(self._logs)

    def correction(self, weights: Array) -> tuple[int, float]:
        """Return how many measurements there are, and by how much, as a logarithm, they exceed the fit.

        It is the mean of those that agree with their median.
        """
        if self.known is None:
            over = np.array(self._logs) - np.log(np.maximum(np.stack(self._rows) @ weights, LEAST))
            middle = float(np.median(over))
            near = over[np.abs(over - middle) <= AGREEING]
            self.known = len(over), float(near.mean()) if len(near) else middle
        return self.known


def shrunk(counts: Array, corrections: Array, noise: float) -> Array:
    """Return the corrections of k cells, [k] float64, shrunk toward their mean as far as noise explains differences.

    Prices follow from differences between cells, and would follow noise otherwise.  The variance of the true
    corrections is estimated as in a random-effects model (DerSimonian and Laird, "Meta-analysis in clinical trials",
    1986).  A cell without measurements gets the mean, which few measurements draw away from 0 only in part.

    Args:
        counts: [k] float64, measurements of each cell.
        corrections: [k] float64, their means; ignored where there are none.
        noise: variance of one measurement.
    """
    total = counts.sum()
    if not total:
        return np.zeros_like(corrections)
    mean = counts @ corrections / total
    spread = counts @ (corrections - mean) ** 2 - (np.count_nonzero(counts) - 1) * noise
    between = spread / max(total - counts @ counts / total, LEAST)
    trust = max(_TRUST, noise / between) if between > 0 else np.inf
    shares = counts / (counts + trust)
    found: Array = shares * corrections + (1 - shares) * mean * total / (total + _TRUST)
    return found
