"""Output of the commands: tables for people, JSON for programs, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 160
"""Width in columns if the output is not a terminal; most rows fit on one line."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
"""The option that every command has."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console on the current stdout or stderr, which prints nothing if it is `quiet`."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPED_WIDTH, highlight=False, quiet=quiet)


def show(data: Any, *parts: Table | Text | str, as_json: bool) -> None:
    """Print one JSON document, or the same for people: tables, remarks, and lines that are not wrapped.

    Values that JSON lacks, such as TOML dates, are printed as strings, and lines without terminal control characters.
    """
    if as_json:
        typer.echo(json.dumps(data, indent=2, default=str))
        return
    for part in parts:
        if isinstance(part, str):
            console().print(Text(printable_text(part)), soft_wrap=True)
        else:
            console().print(part)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, whole: int = 0) -> Table:
    """Return a table.  Strings are shown as they are: brackets are not markup.

    The first `whole` columns are never wrapped or truncated, so that names can be copied.
    """
    cells = [[Text(printable_text(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    made = Table(title=Text(printable_text(title), style="bold"), title_justify="left")
    for place, column in enumerate(columns):
        longest = max([len(column), *(row[place].cell_len for row in cells)]) if place < whole else None
        made.add_column(column, no_wrap=place < whole, min_width=longest)
    for row in cells:
        made.add_row(*row)
    return made


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, whole: int = 0) -> None:
    """Print a `table`."""
    console().print(table(title, columns, rows, whole=whole))


def remark_text(text: str) -> Text:
    """Return a remark."""
    return Text(text, style="dim")


def print_note(text: str) -> None:
    """Print a remark to standard error."""
    console(stderr=True).print(remark_text(text))


def print_error(message: str) -> None:
    """Print an error in red on stderr without wrapping its lines."""
    console(stderr=True).print(Text(f"error: {message}", style="red"), soft_wrap=True)


def printable_text(text: str) -> str:
    """Return a text without terminal control characters, which file names may contain."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def progress(*, quiet: bool) -> Progress:
    """Return a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True), disable=quiet)


@contextmanager
def progress_counter(description: str, total: int, *, quiet: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar of one task on stderr; yield what advances it by one, or by the number given."""
    with progress(quiet=quiet) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count=1: bar.advance(task, count)


def faults_of(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the faults of plug-ins, by plug-in and kind, as text."""
    return [f"{count} {kind} ({who})" for who, kinds in counts.items() for kind, count in kinds.items()]
