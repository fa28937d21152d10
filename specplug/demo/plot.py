"""Plot of the demo: tokens per step by task, with and without speculation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specplug.demo.compare import Row
from specplug.errors import SpecplugError


def plot_rows(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write a PNG, or the format of the path's suffix.

    Raises:
        SpecplugError: matplotlib is not installed, or the path cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpecplugError.build(
            "cannot plot", found=str(error), expected="matplotlib", remedy="pip install 'specplug[plot]'"
        ) from error
    shown = [row for row in rows if row.tokens_per_step is not None]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    axes.bar([p - 0.2 for p in places], [1.0] * len(shown), 0.4, label="without speculation", color="#9aa5b1")
    heights = [row.tokens_per_step or 0 for row in shown]
    bars = axes.bar([p + 0.2 for p in places], heights, 0.4, label="with specplug", color="#2f6fde")
    axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set_xticks(list(places), [row.kind for row in shown])
    axes.set_ylabel("tokens per target step")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise SpecplugError.build("cannot write the plot", who=str(path), found=str(error)) from error
