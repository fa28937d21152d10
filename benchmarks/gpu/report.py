"""Report of `benchmarks.gpu`: tables of what was measured, and what failed or was left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.bubble import WITHOUT
from benchmarks.gpu.draft_model import GRAPHS, OPERATIONS

SHAPE = ("drafts", "batch", "context")


def show(report: dict[str, Any]) -> None:
    """Print the report; ratios only if all that the run compared was equal."""
    is_right = not report["wrong"]
    if (found := report.get("correctness")) is not None:
        counts = ", ".join(f"{name} {count}" for name, count in found["compared"].items())
        print(f"\nCorrectness, cases compared with the CPU: {counts}.")
    if texts := report.get("texts"):
        entered = f"{texts['finished']} tokens in {texts['responses']} finished responses"
        print(f"\nTexts: {texts['decoded']} tokens to decode, and {entered}.")
    if report.get("model", {}).get("cases"):
        _show_model(report["model"]["cases"], is_right)
    if report.get("drafting", {}).get("cases"):
        _show_drafting(report["drafting"]["cases"])
    if report.get("bubble", {}).get("cases"):
        _show_bubble(report["bubble"], is_right)
    for part in ("model", "drafting", "bubble"):
        for line in report.get(part, {}).get("left_out", ()):
            print(f"left out, {part}: {line}")
    for line in report["wrong"]:
        print(f"WRONG: {line}")
    print("Everything that was compared is equal." if is_right else "Because of these faults no ratio is shown.")


def _show_model(cases: Sequence[dict[str, Any]], is_right: bool) -> None:
    rows = []
    for case in cases:
        graphs, operations = case["device_us"][GRAPHS], case["device_us"][OPERATIONS]
        figures = _spread(graphs), _spread(operations), _ratio(operations, graphs, is_right)
        rows.append([case["draft"], str(case["batch"]), *figures])
    header = ["draft model", "batch", GRAPHS, OPERATIONS, f"{OPERATIONS} / {GRAPHS}"]
    _table("A draft model's step: microseconds of the device", header, rows)


def _show_drafting(cases: Sequence[dict[str, Any]]) -> None:
    rows = [
        [
            *_shape(case),
            _spread(case["device_us"]),
            _spread(case["host_us"]),
            f"{case['tokens_per_step']:.2f}",
            str(case["device_waited"]),
        ]
        for case in cases
    ]
    header = [*SHAPE, "device", "host", "tokens", "device waited"]
    _table("Drafting by lookup: microseconds, and tokens per request and step", header, rows)
    print(
        "One step, from before its first launch to after its last: the median step of each round, then the median over "
        "the rounds (least to most).\n'device waited' counts steps whose device time is left out, because the host had "
        "not launched all of the step in time."
    )


def _shape(case: dict[str, Any]) -> list[str]:
    return [str(case[name]) for name in ("draft_length", "batch", "context")]


def _show_bubble(found: dict[str, Any], is_right: bool) -> None:
    names = list(found["cases"][0]["ms_per_step"])
    others = [name for name in names if name != WITHOUT]
    header = [*SHAPE, *(f"{name}: ms" for name in names), *(f"{name} / {WITHOUT}" for name in others)]
    rows = []
    for case in found["cases"]:
        times = case["ms_per_step"]
        rows.append(
            _shape(case)
            + [_spread(times[name], 3) for name in names]
            + [_ratio(times[name], times[WITHOUT], is_right, 4) for name in others]
        )
    _table(f"Whole steps, with a model's step of {found['model_ms']:g} ms", header, rows)
    print("Wall time per step of each round, median over the rounds (least to most); ratios round by round.")


def _spread(values: Sequence[float | None], places: int = 1) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none valid"
    return f"{statistics.median(known):.{places}f} ({min(known):.{places}f} to {max(known):.{places}f})"


def _ratio(above: Sequence[float | None], below: Sequence[float | None], is_right: bool, places: int = 2) -> str:
    if not is_right:
        return "not shown"
    return _spread([a / b for a, b in zip(above, below, strict=True) if a is not None and b], places)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    sizes = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}")
    for line in (header, *rows):
        print("  ".join(cell.rjust(size) for cell, size in zip(line, sizes, strict=True)))
