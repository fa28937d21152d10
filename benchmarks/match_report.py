"""Report of `benchmarks.match_cost`: tables, ratios, and targets."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.peers import Spread, spread

OURS, ARCTIC, VLLM = "specplug", "Arctic", "vLLM ngram"
GROWTH = (8192, 131072)
SHAPE = ("gamma", "batch", "context")


def ratio(row: dict[str, Any], peer: str) -> Spread | None:
    """Return the ratio of a peer's cost to specplug's, round by round, or None without the peer."""
    if peer not in row["arms"]:
        return None
    theirs, ours = row["arms"][peer]["rounds"], row["arms"][OURS]["rounds"]
    return spread([b / a for a, b in zip(ours, theirs, strict=True)])


def growth(rows: list[dict[str, Any]], name: str, low: int, high: int) -> dict[tuple[int, int], float]:
    """Return, by draft length and batch, the cost at context `high` over that at `low`."""
    at = {
        (row["draft_length"], row["batch"], row["context"]): statistics.median(row["arms"][name]["rounds"])
        for row in rows
        if name in row["arms"]
    }
    shapes = dict.fromkeys((draft_length, batch) for draft_length, batch, _ in at)
    return {shape: at[*shape, high] / at[*shape, low] for shape in shapes if {(*shape, low), (*shape, high)} <= set(at)}


def report(rows: list[dict[str, Any]], title: str) -> None:
    """Print the tables."""
    from specplug.cli.output import print_table

    shapes = [(str(row["draft_length"]), str(row["batch"]), str(row["context"])) for row in rows]
    arms = [row["arms"] for row in rows]
    names = (OURS, ARCTIC, VLLM)
    cells = [
        (*shape, *(_spread(of, name, "rounds") for name in names), *(_times(ratio(row, name)) for name in names[1:]))
        for shape, row, of in zip(shapes, rows, arms, strict=True)
    ]
    print_table(title, (*SHAPE, *names, *(f"{name} / ours" for name in names[1:])), cells)
    cells = [
        (
            *shape,
            *(_each(of, name, "emitted") for name in names),
            *(_each(of, name, "drafted") for name in names),
            _spread(of, OURS, "lists"),
        )
        for shape, of in zip(shapes, arms, strict=True)
    ]
    header = (*(f"{name}: tau" for name in names), *(f"{name}: drafted" for name in names), "lists, us")
    print_table("Tokens per request and step; what making lists would add to specplug's cost", (*SHAPE, *header), cells)
    cells = [
        (
            *shape,
            *(_spread(of, name, "insert", 0) for name in names[:2]),
            *(_milliseconds(of, name, row["context"]) for name in names[:2]),
            *(_bytes(of, name) for name in names[:2]),
        )
        for shape, row, of in zip(shapes, rows, arms, strict=True)
    ]
    units = ("us per 1k", "ms each", "bytes a token")
    header = tuple(f"{name}: {unit}" for unit in units for name in names[:2])
    print_table("Prompts: taking them in, one by one, and keeping them", (*SHAPE, *header), cells)
    print(f"specplug's response memory takes {arms[0][OURS]['remembered_bytes']:.2f} bytes a token.")
    cells = []
    for shape in dict.fromkeys((row["draft_length"], row["batch"]) for row in rows):
        found = [growth(rows, name, *GROWTH).get(shape) for name in names]
        cells.append((*map(str, shape), *("not taken" if one is None else f"{one:.2f}" for one in found)))
    print_table("Growth of the cost from a context of 8k to 128k", (*SHAPE[:2], *names), cells)


def judge(rows: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """Return the targets, relative to Arctic and in growth, the measured values, and whether the targets are met."""
    stated = []
    for row in rows:
        least, found = 1.0 if row["batch"] == 1 else 5.0, ratio(row, ARCTIC)
        if found and (row["batch"] == 1 or row["batch"] >= 16):
            where = f"gamma {row['draft_length']}, batch {row['batch']}, context {row['context']}"
            stated.append((f"{where}: {ARCTIC} over ours, aim {least:g} or more", f"{found[0]:.2f}", found[0] >= least))
    for (draft_length, batch), grown in growth(rows, OURS, *GROWTH).items():
        stated.append((f"gamma {draft_length}, batch {batch}: 8k to 128k grows under 1.2", f"{grown:.2f}", grown < 1.2))
    return stated


def _spread(arms: dict[str, Any], name: str, what: str, places: int = 1) -> str:
    if name not in arms:
        return "left out"
    median, least, most = (f"{value:.{places}f}" for value in spread(arms[name][what]))
    return f"{median} ({least} to {most})"


def _times(found: Spread | None) -> str:
    return "left out" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found)


def _each(arms: dict[str, Any], name: str, what: str) -> str:
    return "left out" if name not in arms else f"{arms[name][what] / arms[name]['rows']:.1f}"


def _milliseconds(arms: dict[str, Any], name: str, context: int) -> str:
    return "left out" if name not in arms else f"{statistics.median(arms[name]['insert']) * context / 1e6:.1f}"


def _bytes(arms: dict[str, Any], name: str) -> str:
    found = arms[name]["bytes"] if name in arms else None
    return "left out" if found is None else f"{found:.1f}"
