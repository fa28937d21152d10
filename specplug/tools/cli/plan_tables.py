"""Output of `specplug plan`: its tables and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from specplug.tools.cli.output import table
from specplug.tools.forecast.speedup import RooflineCost

_LENGTHS_SHOWN = {*range(9), 12, 15, 16, 24, 31, 32, 48, 63, 64, 96, 127}
"""Rows of the table by draft length, in addition to the longest; the JSON has all."""


def tables(rows: Sequence[dict[str, Any]], unit: str, roofline: RooflineCost | None) -> Iterator[Table]:
    """Yield the best draft lengths, all draft lengths, and the experts touched."""
    columns = ("batch size", "best gamma", "tau", "speed-up", "break-even acceptance", "draft cost")
    title = f"Predicted best draft length, up to {rows[0]['lengths'][-1]['gamma']} tokens"
    yield table(title, (*columns, "step without drafts"), [_cells(row, timed=unit == "seconds") for row in rows])
    by_length = [[f"{length['speedup']:.2f}" for length in row["lengths"]] for row in rows]
    yield _by_length("Predicted speed-up by draft length", rows, by_length)
    if roofline is not None and (experts := roofline.shape.weights.experts):
        title = f"Experts touched per layer, of {experts}, by draft length"
        yield _by_length(
            title, rows, [[f"{count:.1f}" for count in experts_touched(roofline, row) or ()] for row in rows]
        )


def comparison_table(forecasts: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """Return the best of each of the drafts, and what both drafters gain over the better one alone."""
    lines = []
    for rows in zip(*forecasts, strict=True):
        speedups = [row["best"]["speedup"] for row in rows]
        cells = [
            f"{best['tau']:.2f} ({best['gamma']}): {best['speedup']:.2f}" for best in (row["best"] for row in rows)
        ]
        gains = [f"{speedups[-1] / other:.2f}" for other in (speedups[0], max(speedups[:-1]))]
        lines.append([str(rows[0]["batch"]), *cells, *gains])
    names = ("drafter alone", "lookup alone", "both", "both to drafter", "both to the better")
    return table("Lookup after the engine's drafter: tau (best gamma): speed-up", ("batch size", *names), lines)


def memory_line(memory: Mapping[str, Any], batch: int) -> str:
    """Return the size of a draft model in words."""
    weights, cache, per_gpu = (f"{memory[size] / 1e9:.2f} GB" for size in ("weights", "kv_cache", "per_gpu"))
    return (
        f"Draft model {memory['name']}: {memory['parameters'] / 1e9:.2f} B parameters, {weights} of weights, "
        f"{memory['kv_per_token'] / 1e3:.1f} kB of KV cache per token, {cache} at batch size {batch}; "
        f"{per_gpu} on each GPU."
    )


def _cells(row: Mapping[str, Any], *, timed: bool) -> list[str]:
    best = row["best"]
    plain = row["plain_step"]
    return [
        str(row["batch"]),
        str(best["gamma"] or "off"),
        f"{best['tau']:.2f}",
        f"{best['speedup']:.2f}",
        "never" if row["break_even"] is None else f"{row['break_even']:.2f}",
        f"{row['draft_cost']:.3f}",
        f"{1e3 * plain:.2f} ms" if timed else f"{plain:.2f}",
    ]


def _by_length(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[Sequence[str]]) -> Table:
    """Return a table of one column per batch size; long drafts are shown at some lengths only."""
    gammas = range(len(rows[0]["lengths"]))
    shown = [gamma for gamma in gammas if gamma in _LENGTHS_SHOWN or gamma == gammas[-1]]
    lines = [[str(gamma or "off"), *(column[gamma] for column in columns)] for gamma in shown]
    return table(title, ("gamma", *(f"B={row['batch']}" for row in rows)), lines)


def experts_touched(roofline: RooflineCost | None, row: Mapping[str, Any]) -> list[float] | None:
    """Return the experts of a layer that a step touches, by draft length from 0; None for a dense model."""
    if roofline is None or not roofline.shape.weights.experts:
        return None
    return [roofline.shape.experts_touched(row["batch"] * length["tokens"]) for length in row["lengths"]]


def description_of(cost: RooflineCost) -> str:
    """Return a roofline in words."""
    shape = cost.shape
    gpu = cost.gpu
    active = f", {shape.active_parameters / 1e9:.2f} B of them per token" if shape.weights.experts else ""
    return (
        f"roofline of {shape.name}, {shape.parameters / 1e9:.2f} B parameters{active}, {cost.weight_bits:g} bits each, "
        f"{cost.context} tokens of context, on {cost.tensor_parallel} x {gpu.bandwidth / 1e12:g} TB/s "
        f"and {gpu.flops / 1e12:g} TFLOPS"
    )
