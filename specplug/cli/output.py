"""Output of the commands: tables for people, JSON for programs, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
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


def console(*, stderr: bool = False) -> Console:
    """Return a console on the current stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPED_WIDTH, highlight=False)


def progress(*, quiet: bool) -> Progress:
    """Return a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True), disable=quiet)


def print_json(data: Any) -> None:
    """Print one JSON document; values that JSON lacks, such as TOML dates, are printed as strings."""
    typer.echo(json.dumps(data, indent=2, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, whole: int = 0) -> None:
    """Print a table.  Strings are shown as they are: brackets are not markup.

    Args:
        title, columns, rows: contents of the table.
        whole: number of leading columns that are never wrapped or truncated, so that names can be copied.
    """
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        longest = max([len(column), *(row[place].cell_len for row in cells)]) if place < whole else None
        table.add_column(column, no_wrap=place < whole, min_width=longest)
    for row in cells:
        table.add_row(*row)
    console().print(table)


def print_error(message: str) -> None:
    """Print an error in red on stderr without wrapping its lines."""
    console(stderr=True).print(Text(f"error: {message}", style="red"), soft_wrap=True)


def printable(text: str) -> str:
    """Return a text without terminal control characters, which file names may contain."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def print_line(line: str) -> None:
    """Print a line without wrapping and without terminal control characters."""
    console().print(Text(printable(line)), soft_wrap=True)


def rate_shown(rate: float) -> str:
    """Return a rate in tokens per second as text, with a decimal below 10."""
    return f"{rate:.{1 if rate < 10 else 0}f} tokens/s"
