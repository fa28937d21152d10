"""Options shared by several commands of `specplug corpus`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Root = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.")]
Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Text files, folders, .jsonl files, or - for JSON lines on stdin."),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Its tenant; other tenants' requests never draft from it.")]
Name = Annotated[
    str | None, typer.Option("--name", help="The corpus's name; by default each SOURCE is one, named by its stem.")
]
Globs = Annotated[
    list[str] | None,
    typer.Option("--glob", metavar="PATTERN", help="Only files in folders that match, as '*.md'; repeat."),
]
TextField = Annotated[str, typer.Option("--text-field", help="The key of the text in JSON lines.")]
NameField = Annotated[
    str | None, typer.Option("--name-field", help="The key of the document's name; by default name, or else id.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Count and skip what cannot be read, such as files that are not UTF-8.")
]
Extend = Annotated[
    bool,
    typer.Option("--extend", help="Add to the corpus if it exists, except for documents that it already has."),
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Refuse additions that would give the tenant more tokens than this."),
]
NoMerge = Annotated[bool, typer.Option("--no-merge", help="Do not merge segments.")]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Where the store's tokenizer is, if it has moved.")]
