"""Plots of a replay: tau by workload, S by batch size, and reliability."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specplug.errors import SpecplugError
from specplug.replay.report import NO_DRAFTS, PLAIN, POOLED, Report
from specplug.replay.score import mean_speedup, pool

Draw = Callable[[Any, Report], None]

PANELS: dict[str, Draw] = {}
"""Panels by the name of their file in a folder."""

_DPI = 150
_INCHES = (7.0, 4.2)


def check_ending(path: Path) -> None:
    """Check the suffix of a plot's path before the replay starts.

    Raises:
        SpecplugError: matplotlib is not installed, or does not support the suffix.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise SpecplugError.build(
            "cannot plot", found=str(error), expected="matplotlib", remedy="pip install 'specplug[plot]'"
        ) from error
    endings = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix and not path.is_dir() and path.suffix[1:].lower() not in endings:
        raise SpecplugError.build(
            "cannot plot", who="--plot", found=repr(path.suffix), expected=", ".join(f".{each}" for each in endings)
        )


def plot(report: Report, path: Path) -> list[Path]:
    """Write the panels side by side to one image, or, if `path` has no suffix, as separate files to that folder.

    Returns:
        The files written.

    Raises:
        SpecplugError: matplotlib is not installed, or the path cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpecplugError.build(
            "cannot plot", found=str(error), expected="matplotlib", remedy="pip install 'specplug[plot]'"
        ) from error
    panels = {name: draw for name, draw in PANELS.items() if name != "reliability" or any(report.reliabilities())}
    if path.suffix and not path.is_dir():
        panel, height = _INCHES
        figure = Figure(figsize=(panel * len(panels), height), layout="constrained")
        for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.values(), strict=True):
            _draw(axes, report, draw)
        return [_save(figure, path)]
    written = []
    for name, draw in panels.items():
        figure = Figure(figsize=_INCHES, layout="constrained")
        _draw(figure.subplots(), report, draw)
        written.append(_save(figure, path / f"{name}.png"))
    return written


def _draw(axes: Any, report: Report, draw: Draw) -> None:
    draw(axes, report)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _save(figure: Any, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise SpecplugError.build("cannot write the plot", who=str(path), found=str(error)) from error
    return path


def _series(report: Report) -> list[tuple[str, str, Any]]:
    """Return (name, label, mode) of each line or row of bars."""
    several = len(report.modes) > 1
    return [(f"{label}, {mode}" if several else label, label, mode) for label in report.labels for mode in report.modes]


def _tau(axes: Any, report: Report) -> None:
    """Draw bars of tau for each workload at the first batch size."""
    batch, names = report.batches[0], [*report.workloads, POOLED]
    series = _series(report)
    bar = 0.8 / len(series)
    for number, (name, label, mode) in enumerate(series):
        counts = report.counts(label, mode, batch)
        heights = [each.tau for each in (*counts, pool(counts))]
        places = [place + (number + 0.5) * bar - 0.4 for place in range(len(names))]
        bars = axes.bar(places, heights, bar, label=name)
        if len(series) <= 2:
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    axes.axhline(1.0, color="#9aa5b1", linewidth=1, label=NO_DRAFTS)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize=8)
    axes.set_ylabel("tau, tokens per target step")
    axes.set_title(f"Mean acceptance length, batch size {batch}", fontsize=10)


def _speedup(axes: Any, report: Report) -> None:
    """Draw lines of the geometric mean of S over workloads, by batch size."""
    places = range(len(report.batches))
    for name, label, mode in _series(report):
        means = [mean_speedup(report.counts(label, mode, batch), batch, report.roofline) for batch in report.batches]
        axes.plot(places, means, marker="o", markersize=4, label=name)
    plain = [PLAIN.speedup(batch, report.roofline) for batch in report.batches]
    axes.plot(places, plain, color="#9aa5b1", linestyle="--", label=NO_DRAFTS)
    axes.set_xticks(places, [str(batch) for batch in report.batches])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size B")
    axes.set_ylabel("S(B), mean over workloads")
    axes.set_title(f"Speed-up, a step bound by memory up to {report.roofline.n_sat:g} tokens", fontsize=10)


def _reliability(axes: Any, report: Report) -> None:
    """Draw acceptance against confidence; the area of a point grows with its tokens."""
    axes.plot([0, 1], [0, 1], color="#9aa5b1", linestyle="--", label="calibrated")
    several = len(report.modes) > 1
    for label, mode, _, found in report.reliabilities():
        name = f"{label}, {mode}" if several else label
        stated = [point.confidence for point in found.curve]
        kept = [point.acceptance for point in found.curve]
        (line,) = axes.plot(stated, kept, linewidth=1, label=f"{name}: Brier {found.brier:.3f}")
        sizes = [8 + 120 * point.count / found.tokens for point in found.curve]
        axes.scatter(stated, kept, s=sizes, color=line.get_color())
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("confidence of a draft token")
    axes.set_ylabel("share accepted")
    axes.set_title(f"Reliability, batch size {report.batches[0]}", fontsize=10)


PANELS.update(tau=_tau, speedup=_speedup, reliability=_reliability)
