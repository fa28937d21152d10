"""Progress notes and statistics that benchmarks share."""

from __future__ import annotations

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
