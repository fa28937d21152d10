"""`specplug demo` command: answers chats, or tasks made of real files, with and without speculation, side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from specplug.cli.chat import TEMPLATE, Raw, note, prompt_form
from specplug.cli.launch import (
    Device,
    DraftLength,
    DraftModel,
    Dtype,
    EmbeddedOnly,
    Policy,
    Proposer,
    Threads,
    drafted_by,
    flags,
    start_engine,
)
from specplug.cli.output import AsJson, console, print_json, print_table
from specplug.demo.tasks import KINDS, Task, make_tasks

NOTE = "Both runs are the same engine, in turn{over}, excluding the tokens inside repetition loops. "
OF_TASKS = NOTE.format(over=", over correct outputs") + (
    "The model is tiny and trained for these tasks: they show the mechanism. "
    "`make demo` or --model FOLDER shows a real one."
)
OF_CHATS = NOTE.format(over="") + (
    "What yours gain depends on how much of an answer is already in its prompt; try "
    "`specplug generate MODEL QUESTION --compare`."
)


def demo(
    model: Annotated[str, typer.Option("--model", help="A folder, a model id, or a shipped model.")] = "tiny",
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="Tasks of each kind; by default 12, or 2 chats, which are all.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens per answer; by default 400, or 64 of a chat.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed that selects the tasks; chats are always the same.")] = 0,
    raw: Raw = False,
    engine: EmbeddedOnly = None,
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
    """Show speculation at work: each task is served without and with it, and the outputs must be identical.

    A model with a chat template answers chats of six kinds.  The shipped model rewrites code with a small edit, quotes
    from documents, fills JSON templates and continues code, from Python files on this machine that it was never trained
    on.  The exit code is 1 if any outputs differ.

    Examples:

    `specplug demo --tasks 20 --plot demo.png`

    `specplug demo --model ./my-model`, with chats

    `specplug demo --draft tiny-draft-other`, with a draft model that has another tokenizer
    """
    chosen = drafted_by(draft, proposer) | flags(policy=policy, num_speculative_tokens=draft_length)
    launch: dict[str, Any] = {"device": device, "dtype": dtype, "max_num_seqs": 1, "threads": threads}
    plain = start_engine(model, {**chosen, "mode": "off"}, **launch)
    speculative = start_engine(model, chosen, **launch)
    try:
        form, described = prompt_form(model, raw=raw)
        note(described)
        chats = described == TEMPLATE
        first, items = _tasks(chats, tasks, seed)
        most = max_tokens or (64 if chats else 400)
        rows = _run(plain, speculative, first, items, most, form, show=chats and not as_json, quiet=as_json)
        description = speculative.describe()
    finally:
        plain.close()
        speculative.close()
    if plot is not None:
        from specplug.demo.plot import plot_rows

        plot_rows(rows, plot, f"Tokens per target step: {description}")
    remark = OF_CHATS if chats else OF_TASKS
    if as_json:
        print_json({"model": description, "note": remark, "rows": [row.as_dict() for row in rows]})
    else:
        _print(rows, description, remark, plot)
    if rows[-1].identical < rows[-1].tasks:
        raise typer.Exit(1)


def _tasks(chats: bool, each: int | None, seed: int) -> tuple[Task, list[Task]]:
    """Return a task to begin with, which is not counted, and the others, kind by kind."""
    if chats:
        from specplug.demo.chats import chat_tasks

        return chat_tasks(each or 2)
    count = each or 12
    made = [make_tasks(kind, "held-out", count + 1, seed) for kind in KINDS]
    return made[0][-1], [task for of_kind in made for task in of_kind[:count]]


def _run(
    plain: Any,
    speculative: Any,
    first: Task,
    tasks: list[Task],
    max_tokens: int,
    form: Callable[[str], Any],
    *,
    show: bool,
    quiet: bool,
) -> list[Any]:
    from specplug.demo.compare import run_pairs, serve, summarise

    serve(plain, form(first.prompt), max_tokens)
    out = console()
    if show:
        out.print(Text(f"> {first.prompt}", style="bold"))
        serve(speculative, form(first.prompt), max_tokens, lambda text: out.print(Text(text), end=""))
        out.print("\n")
    else:
        serve(speculative, form(first.prompt), max_tokens)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task("without and with speculation", total=len(tasks))
        pairs = run_pairs(tasks, plain, speculative, max_tokens, lambda _: progress.advance(bar), form)
    kinds = dict.fromkeys(task.kind for task in tasks)
    return [summarise(kind, [it for it in pairs if it.task.kind == kind]) for kind in kinds] + [summarise("all", pairs)]


def _print(rows: list[Any], description: str, remark: str, plot: Path | None) -> None:
    header = ("task", "correct", "in loops", "tokens", "tokens per step", "accepted", "wall-clock ratio", "identical")
    print_table(f"Without and with speculation: {description}", header, [_cells(row) for row in rows])
    out = console()
    out.print(remark, style="dim", markup=False)
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
