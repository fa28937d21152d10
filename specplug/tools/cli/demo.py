"""`specplug demo` command: answers chats, or tasks made of real files, with and without speculation, side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from specplug.tools.cli.launch import TEMPLATE, prompt_form, start_engine
from specplug.tools.cli.options import Drafting, Place, Raw, with_groups
from specplug.tools.cli.output import AsJson, console, print_note, progress_counter, remark_text, show, table
from specplug.tools.demo.tasks import KINDS, Task, chat_tasks, make_tasks

if TYPE_CHECKING:
    from specplug.plugins.embedded import TextEngine
    from specplug.tools.demo.compare import TaskComparison

NOTE = "Both runs are the same engine, in turn{over}, excluding the tokens inside repetition loops. "
OF_TASKS = NOTE.format(over=", over correct outputs") + (
    "The model is tiny and trained for these tasks: they show the mechanism. "
    "`make demo` or --model FOLDER shows a real one."
)
OF_CHATS = NOTE.format(over="") + (
    "What yours gain depends on how much of an answer is already in its prompt; try "
    "`specplug generate MODEL QUESTION --compare`."
)


@with_groups
def demo(
    model: Annotated[str, typer.Option(help="A folder, a model id, or a shipped model.")] = "tiny",
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks of each kind; by default 12, or all 2 chats.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens per answer; by default 400, or 64 of a chat.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed that selects the tasks; chats are always the same.")] = 0,
    raw: Raw = False,
    *,
    drafting: Drafting,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of tokens per step by task.")] = None,
    place: Place,
    as_json: AsJson = False,
) -> None:
    """Show speculation at work: each task is served without and with it, and the outputs must be identical.

    A model with a chat template answers chats of six kinds.  The shipped model rewrites code with a small edit, quotes
    from documents, fills JSON templates and continues code, from Python files on this machine that it was never trained
    on.  The exit code is 1 if any outputs differ.

    Tokens per step and the ratio of wall-clock time, prefill included, are of outputs that are correct, without
    repetition loops (16 tokens three times running, or a shorter period for as long), where any lookup looks perfect.

    Examples:

    `specplug demo --tasks 20 --plot demo.png`

    `specplug demo --model ./my-model`, with chats

    `specplug demo --draft tiny-draft-other`, with a draft model that has another tokenizer
    """
    chosen = drafting.settings()
    own: dict[str, Any] = {**place.arguments(), "max_num_seqs": 1}
    with (
        closing(start_engine(model, {**chosen, "mode": "off"}, **own)) as plain,
        closing(start_engine(model, chosen, **own)) as speculative,
    ):
        form, described = prompt_form(model, raw=raw)
        print_note(described)
        chats = described == TEMPLATE
        first, items = _tasks(chats, tasks, seed)
        most = max_tokens or (64 if chats else 400)
        streamed = chats and not as_json
        rows = _compare(plain, speculative, first, items, most, form, show_first=streamed, quiet=as_json)
        description = speculative.describe()
    if plot is not None:
        from specplug.tools.demo.compare import plot_rows

        plot_rows(rows, plot, f"Tokens per target step: {description}")
    remark = OF_CHATS if chats else OF_TASKS
    show(
        {"model": description, "note": remark, "rows": [asdict(row) for row in rows]},
        table(f"Without and with speculation: {description}", _COLUMNS, map(_cells, rows)),
        remark_text(remark),
        _verdict(rows[-1]),
        *([] if plot is None else [f"Plot: {plot}"]),
        as_json=as_json,
    )
    if rows[-1].identical < rows[-1].tasks:
        raise typer.Exit(1)


def _verdict(whole: TaskComparison) -> Text:
    differing = whole.tasks - whole.identical
    if not differing:
        return Text(f"Outputs are identical in all {whole.tasks} tasks.", style="green")
    ties = "In low precision two tokens can tie to within rounding; anything else is a defect worth reporting."
    return Text(f"Outputs differ in {differing} of {whole.tasks} tasks. {ties}", style="red")


def _tasks(chats: bool, each: int | None, seed: int) -> tuple[Task, list[Task]]:
    """Return a task to begin with, which is not counted, and the others, kind by kind."""
    if chats:
        return chat_tasks(each or 2)
    count = each or 12
    made = [make_tasks(kind, "held-out", count + 1, seed) for kind in KINDS]
    return made[0][-1], [task for of_kind in made for task in of_kind[:count]]


def _compare(
    plain: TextEngine,
    speculative: TextEngine,
    first: Task,
    tasks: list[Task],
    max_tokens: int,
    form: Callable[[str], Any],
    *,
    show_first: bool,
    quiet: bool,
) -> list[TaskComparison]:
    """Serve all tasks with both engines; return a row for each kind, and one for all."""
    from specplug.tools.demo.compare import run_pairs, serve, summarise

    serve(plain, form(first.prompt), max_tokens)
    out = console(quiet=not show_first)
    out.print(Text(f"> {first.prompt}", style="bold"))
    serve(speculative, form(first.prompt), max_tokens, lambda text: out.print(Text(text), end=""))
    out.print("\n")
    with progress_counter("without and with speculation", len(tasks), quiet=quiet) as advance:
        pairs = run_pairs(tasks, plain, speculative, max_tokens, lambda _: advance(), form)
    kinds = dict.fromkeys(task.kind for task in tasks)
    return [summarise(kind, [it for it in pairs if it.task.kind == kind]) for kind in kinds] + [summarise("all", pairs)]


_COLUMNS = ("task", "correct", "in loops", "tokens", "tokens per step", "accepted", "wall-clock ratio", "identical")


def _cells(row: TaskComparison) -> list[str]:
    return [
        row.kind,
        "open" if row.correct_share is None else f"{row.correct_share:.0%}",
        f"{row.loop_share:.0%}",
        str(row.tokens),
        "none" if row.tokens_per_step is None else f"1.00 -> {row.tokens_per_step:.2f}",
        "none" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
        "none" if row.speedup is None else f"{row.speedup:.2f}x",
        f"{row.identical} of {row.tasks}",
    ]
