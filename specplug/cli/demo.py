"""`specplug demo` command: runs the shipped model on real files with and without speculation, side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specplug.cli.chat import Raw, note, prompt_form
from specplug.cli.launch import (
    Device,
    DraftLength,
    DraftModel,
    Dtype,
    EngineName,
    Policy,
    Proposer,
    Threads,
    drafted_by,
    flags,
    start_engine,
)
from specplug.cli.output import AsJson, console, print_json, print_table
from specplug.demo.tasks import KINDS, Kind, make_tasks

NOTE = (
    "Wall-clock time is that of a 4M-parameter model on this machine: it shows the mechanism, not what a GPU gains. "
    "Both columns are the same engine, in turn, over correct outputs, excluding the tokens inside repetition loops."
)


def demo(
    model: Annotated[str, typer.Option("--model", help="A folder, a model id, or a shipped model.")] = "tiny",
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Tasks of each kind.")] = 12,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens per answer.")] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Seed that selects the tasks.")] = 0,
    raw: Raw = False,
    engine: EngineName = "transformers",
    draft: DraftModel = None,
    proposer: Proposer = None,
    policy: Policy = None,
    draft_length: DraftLength = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a PNG of tokens per step by task.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Show speculation at work, offline: the shipped model answers tasks made from real files on this machine.

    It rewrites code with a small edit, quotes from documents, fills JSON templates and continues code, from Python
    files that it was never trained on.  Each task is served without and with speculation; the outputs must be
    identical.  The exit code is 1 if any differ.

    Examples:

    `specplug demo --tasks 20 --plot demo.png`

    `specplug demo --draft tiny-draft-other`, with a draft model that has another tokenizer
    """
    chosen = drafted_by(draft, proposer) | flags(policy=policy, num_speculative_tokens=draft_length)
    launch: dict[str, Any] = {"device": device, "dtype": dtype, "max_num_seqs": 1, "threads": threads}
    plain = start_engine(engine, model, {**chosen, "mode": "off"}, **launch)
    speculative = start_engine(engine, model, chosen, **launch)
    try:
        form, described = prompt_form(model, raw=raw)
        note(described)
        rows = _run(plain, speculative, tasks, max_tokens, seed, form, quiet=as_json)
        description = speculative.describe()
    finally:
        plain.close()
        speculative.close()
    if plot is not None:
        from specplug.demo.plot import plot_rows

        plot_rows(rows, plot, f"Tokens per target step: {description}")
    if as_json:
        print_json({"model": description, "note": NOTE, "rows": [row.as_dict() for row in rows]})
    else:
        _print(rows, description, plot)
    if rows[-1].identical < rows[-1].tasks:
        raise typer.Exit(1)


def _run(
    plain: Any, speculative: Any, count: int, max_tokens: int, seed: int, form: Callable[[str], Any], *, quiet: bool
) -> list[Any]:
    from specplug.demo.compare import run_pairs, summarise

    items = {kind: make_tasks(kind, "held-out", count, seed) for kind in KINDS}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    pairs: dict[Kind, list[Any]] = {}
    with Progress(*columns, console=console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task("", total=count * len(KINDS))
        for kind, tasks in items.items():
            progress.update(bar, description=f"{kind}: without and with speculation")
            pairs[kind] = run_pairs(tasks, plain, speculative, max_tokens, lambda _: progress.advance(bar), form)
    everything = [pair for found in pairs.values() for pair in found]
    return [summarise(kind, found) for kind, found in pairs.items()] + [summarise("all", everything)]


def _print(rows: list[Any], description: str, plot: Path | None) -> None:
    header = ("task", "correct", "in loops", "tokens", "tokens per step", "accepted", "wall-clock ratio", "identical")
    print_table(f"Without and with speculation: {description}", header, [_cells(row) for row in rows])
    out = console()
    out.print(NOTE, style="dim")
    last = rows[-1]
    if last.identical == last.tasks:
        out.print(f"Outputs are identical in all {last.tasks} tasks.", style="green")
    else:
        out.print(
            f"Outputs differ in {last.tasks - last.identical} of {last.tasks} tasks. In low precision two tokens can "
            "tie to within rounding; anything else is a defect worth reporting.",
            style="red",
        )
    if plot is not None:
        out.print(f"Plot: {plot}")


def _cells(row: Any) -> list[str]:
    def share(value: float | None) -> str:
        return "open" if value is None else f"{value:.0%}"

    def ratio(value: float | None, one: str) -> str:
        return "none" if value is None else f"{one} -> {value:.2f}"

    return [
        row.kind,
        share(row.correct_share),
        share(row.loop_share),
        str(row.tokens),
        ratio(row.tokens_per_step, "1.00"),
        "none" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
        "none" if row.speedup is None else f"{row.speedup:.2f}x",
        f"{row.identical} of {row.tasks}",
    ]
