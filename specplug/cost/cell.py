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
