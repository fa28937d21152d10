"""Output of `specplug plan`: tables by batch size and draft length, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from specplug.cli.output import console, print_json, print_table
from specplug.forecast.acceptance import Acceptance
from specplug.forecast.memory import ModelMemory
from specplug.forecast.speedup import BatchForecast
from specplug.forecast.step_cost import RooflineCost, SaturationCost, StepCost

NOTE = (
    "Predicted by a model of a step's cost, not measured: peak rates, equal contexts, uniform routing, and the same "
    "acceptance at every batch size. `specplug bench` measures a server."
)
_LENGTHS_SHOWN = {*range(9), 12, 15, 16, 24, 31, 32, 48, 63, 64, 96, 127}
"""Rows of the table by draft length, in addition to the longest; the JSON has all."""


def print_as_json(
    rows: Sequence[BatchForecast], acceptance: Acceptance, cost: StepCost, memory: ModelMemory | None, overhead: float
) -> None:
    """Print the forecast as one JSON document; draft lengths of a mixture of experts have `experts_touched`."""
    print_json(
        {
            "acceptance": acceptance.as_dict(),
            "cost": _description(cost),
            "step_unit": "seconds" if isinstance(cost, RooflineCost) else "steps of a small batch",
            "overhead": overhead,
            "rows": [{**row.as_dict(), "experts_touched": _experts(cost, row)} for row in rows],
            "draft_model": None if memory is None else memory.as_dict(),
            "note": NOTE,
        }
    )


def print_tables(
    rows: Sequence[BatchForecast], acceptance: Acceptance, cost: StepCost, memory: ModelMemory | None, overhead: float
) -> None:
    """Print the best draft lengths, all draft lengths, experts touched, memory, and what the figures rest on."""
    timed = isinstance(cost, RooflineCost)
    columns = (
        "batch size",
        "best gamma",
        "tau",
        "speed-up",
        "break-even acceptance",
        "draft cost",
        "step without drafts",
    )
    longest = rows[0].lengths[-1].gamma
    title = f"Predicted best draft length, up to {longest} tokens"
    print_table(title, columns, [_cells(row, timed=timed) for row in rows])
    by_length = [[f"{length.speedup:.2f}" for length in row.lengths] for row in rows]
    _print_by_length("Predicted speed-up by draft length", rows, by_length)
    if isinstance(cost, RooflineCost) and cost.shape.experts:
        title = f"Experts touched per layer, of {cost.shape.experts}, by draft length"
        _print_by_length(title, rows, [[f"{count:.1f}" for count in _experts(cost, row) or ()] for row in rows])
    out = console()
    if memory is not None:
        out.print(Text(_memory(memory, rows[-1].batch)))
    out.print(Text(f"Acceptance: {acceptance.source}."))
    out.print(Text(f"Cost: {_description(cost)}; drafting adds {overhead:g} of a step."))
    out.print(Text(NOTE, style="dim"))


def _cells(row: BatchForecast, *, timed: bool) -> list[str]:
    best = row.best
    return [
        str(row.batch),
        str(best.gamma) if best.gamma else "off",
        f"{best.tau:.2f}",
        f"{best.speedup:.2f}",
        "never" if row.break_even is None else f"{row.break_even:.2f}",
        f"{row.draft_cost:.3f}",
        f"{1e3 * row.plain_step:.2f} ms" if timed else f"{row.plain_step:.2f}",
    ]


def _print_by_length(title: str, rows: Sequence[BatchForecast], columns: Sequence[Sequence[str]]) -> None:
    """Print a table of one column per batch size; long drafts are shown at some lengths only."""
    gammas = [length.gamma for length in rows[0].lengths]
    shown = [gamma for gamma in gammas if gamma in _LENGTHS_SHOWN or gamma == gammas[-1]]
    lines = [[str(gamma) if gamma else "off", *(column[gamma] for column in columns)] for gamma in shown]
    print_table(title, ("gamma", *(f"B={row.batch}" for row in rows)), lines)


def _experts(cost: StepCost, row: BatchForecast) -> list[float] | None:
    """Return the experts of a layer that a step touches, by draft length from 0; None for a dense model."""
    if not isinstance(cost, RooflineCost) or not cost.shape.experts:
        return None
    return [cost.shape.experts_touched(row.batch * length.tokens) for length in row.lengths]


def _memory(memory: ModelMemory, batch: int) -> str:
    def gigabytes(count: float) -> str:
        return f"{count / 1e9:.2f} GB"

    return (
        f"Draft model {memory.name}: {memory.parameters / 1e9:.2f} B parameters, {gigabytes(memory.weights)} of "
        f"weights, {memory.kv_per_token / 1e3:.1f} kB of KV cache per token, {gigabytes(memory.kv_cache)} at batch "
        f"size {batch}; {gigabytes(memory.per_gpu)} on each GPU."
    )


def _description(cost: StepCost) -> Any:
    """Return the step cost in words."""
    if isinstance(cost, SaturationCost):
        return f"a step costs the same up to {cost.saturation:g} tokens, and grows in proportion beyond"
    assert isinstance(cost, RooflineCost)
    shape, gpu = cost.shape, cost.gpu
    active = f", {shape.active_parameters / 1e9:.2f} B of them per token" if shape.experts else ""
    return (
        f"roofline of {shape.name}, {shape.parameters / 1e9:.2f} B parameters{active}, {cost.weight_bits:g} bits each, "
        f"{cost.context} tokens of context, on {cost.tensor_parallel} x {gpu.bandwidth / 1e12:g} TB/s "
        f"and {gpu.flops / 1e12:g} TFLOPS"
    )
