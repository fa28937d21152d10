"""Options that several commands of `specplug corpus` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Root = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.")]
Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Text files, folders, .jsonl files, or - for JSON lines on stdin."),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose it is: other tenants' requests never draft from it.")]
Name = Annotated[
    str | None, typer.Option("--name", help="The corpus's name; without it each SOURCE is one, called by its stem.")
]
Globs = Annotated[
    list[str] | None, typer.Option("--glob", metavar="PATTERN", help="Of folders only such files, as '*.md'; repeat.")
]
TextField = Annotated[str, typer.Option("--text-field", help="What JSON lines call the text.")]
NameField = Annotated[
    str | None, typer.Option("--name-field", help="What they call the document's name; by default name, or else id.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Count what cannot be read, such as files that are no UTF-8, and go on.")
]
Extend = Annotated[
    bool,
    typer.Option("--extend", help="Add to the corpus if one of this name is there, but for what it has already."),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Refuse what would give the tenant more tokens than this.")
]
NoMerge = Annotated[bool, typer.Option("--no-merge", help="Leave small segments as they are.")]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", help="Where the store's tokenizer is, if not where it was.")
]
