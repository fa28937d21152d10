"""Progress notes and statistics that benchmarks share."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence

Spread = tuple[float, float, float]
"""Median, least and most."""


def note(text: str) -> None:
    """Print the run's progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> Spread:
    """Return median, minimum and maximum."""
    return statistics.median(values), min(values), max(values)


def interval(ratios: Sequence[float]) -> Spread:
    """Return the median and the ends of its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[49], medians[1949]
