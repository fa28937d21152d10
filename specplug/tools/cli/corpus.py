"""`specplug corpus` commands: build, change and inspect a store of texts to draft from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specplug.tools.cli.options import option, with_groups
from specplug.tools.cli.output import AsJson, show, table

corpus = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

Root = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Its tenant; other tenants' requests never draft from it.")]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Where the store's tokenizer is, if it has moved.")]


@corpus.callback()
def about() -> None:
    """Keep texts that answers are likely to quote, for a server to draft from.

    A store is a folder. It holds the texts as tokens of one model, in corpora, for one or several tenants. Serving
    processes pick up each change within about a second, without interruption.

    Example: `specplug corpus build ./store ./docs --tokenizer ./my-model`
    """


Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Text files, folders, .jsonl files, or - for JSON lines on stdin."),
]


@dataclass(frozen=True)
class Intake:
    """How sources are read, and whose corpora they become."""

    name: str | None = option(None, "The corpus's name; by default each SOURCE is one, named by its stem.")
    tenant: Tenant = ""
    globs: list[str] | None = option(
        None, "Only files in folders that match, as '*.md'; repeat.", "--glob", metavar="PATTERN"
    )
    text_field: str = option("text", "The key of the text in JSON lines.")
    name_field: str | None = option(None, "The key of its name; by default name, or else id.")
    skip_bad: bool = option(False, "Count and skip what cannot be read, such as files that are no text.", "--skip-bad")

    def take(self, store: Path, sources: list[str], tokenizer: str | None, *, as_json: bool, **how: Any) -> None:
        """Add to a store, or bring it up to date; see `take_in`."""
        from specplug.corpus.sources import Reading
        from specplug.tools.cli.corpus_intake import shown_intake, take_in

        reading = Reading(
            globs=tuple(self.globs or ()),
            text_field=self.text_field,
            name_field=self.name_field,
            skip_bad=self.skip_bad,
        )
        found = take_in(store, tokenizer, sources, self.name, reading, tenant=self.tenant, quiet=as_json, **how)
        show(found, *shown_intake(found, sync=how.get("sync", False)), as_json=as_json)


Extend = Annotated[
    bool, typer.Option("--extend", help="Add to the corpus if it exists, except for documents that it already has.")
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Refuse additions that would give the tenant more tokens than this.")
]


@corpus.command()
@with_groups
def build(
    store: Root,
    sources: Sources,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            help="The target's tokenizer: a folder or Hugging Face id, a tokenizer.json, or tekken, spm1, spm3, tiny.",
        ),
    ],
    intake: Intake,
    *,
    extend: Extend = False,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
) -> None:
    """Create a store, if there is none, and add corpora to it.

    Folders are read recursively; hidden and binary files, and symbolic links that lead out of the folder, are skipped
    and counted. JSON lines have a `text` or `token_ids`, and a `name` or `id`. A corpus is added whole or not at all.
    Unreadable documents are listed before anything is created. If texts have changed, use `specplug corpus sync`.

    Examples:

    `specplug corpus build ./store ./docs --tokenizer ./my-model --glob '*.md' --glob '*.py'`

    `zcat chunks.jsonl.gz | specplug corpus build ./store - --name chunks --tokenizer ./my-model --text-field body`
    """
    intake.take(store, sources, tokenizer, as_json=as_json, create=True, extend=extend, max_tokens=max_tokens)


@corpus.command()
@with_groups
def add(
    store: Root,
    sources: Sources,
    tokenizer: Tokenizer = None,
    *,
    intake: Intake,
    extend: Extend = False,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
) -> None:
    """Add corpora to an existing store, also while servers draft from it.

    Sources are read as by `specplug corpus build`. The store records its tokenizer.

    Examples:

    `specplug corpus add ./store ./handbook --tenant acme`

    `specplug corpus add ./store new-chunks.jsonl --name chunks --extend`
    """
    intake.take(store, sources, tokenizer, as_json=as_json, create=False, extend=extend, max_tokens=max_tokens)


@corpus.command()
@with_groups
def sync(
    store: Root,
    sources: Sources,
    tokenizer: Annotated[str | None, typer.Option(help="The target's tokenizer, if new or moved.")] = None,
    *,
    intake: Intake,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
) -> None:
    """Update corpora to match their sources: add new documents, replace changed ones, remove deleted ones.

    Sources are read as by `specplug corpus build`; documents are identified by name and content, and unchanged ones are
    kept. Servers see all of a corpus's changes at once. A missing corpus is built, and so is a missing store if
    `--tokenizer` is given.

    Examples:

    `specplug corpus sync ./store ./docs --glob '*.md'`

    `specplug corpus sync ./store ./handbook --tenant acme --tokenizer ./my-model`
    """
    from specplug.corpus.store import STORE_FILE

    create = tokenizer is not None and not (store / STORE_FILE).exists()
    intake.take(store, sources, tokenizer, as_json=as_json, create=create, sync=True, max_tokens=max_tokens)


@corpus.command()
def remove(
    store: Root,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The corpus.")],
    documents: Annotated[
        list[str] | None, typer.Option("--document", help="Only the documents of this name; repeat.")
    ] = None,
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Remove a corpus, or documents of it.

    Servers stop drafting from it as soon as they see the change. No file of the store has its text afterwards;
    a damaged one, which the log names, keeps it until the last of its corpora is removed.

    Examples:

    `specplug corpus remove ./store handbook --tenant acme`

    `specplug corpus remove ./store docs --document guide/old.md`
    """
    from specplug.corpus.store import Store

    removed = Store(store).remove(name, documents=documents or None, tenant=tenant)
    data = {"store": str(store), "corpus": name, **removed._asdict()}
    line = f"Removed from {name}: documents {removed.documents:,}, tokens {removed.tokens:,}."
    show(data, line, as_json=as_json)


@corpus.command("list")
def list_corpora(
    store: Root,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List a store's tenants, their corpora, and the corpora's sizes.

    Bytes are a corpus's share of files that it may share with others.

    Example: `specplug corpus list ./store`
    """
    from specplug.corpus.store import Store

    found = Store(store)
    infos = found.list(tenant)
    rows = [(one.tenant, one.name, *(f"{count:,}" for count in one[2:])) for one in infos]
    title = f"{store} (tokens of {found.tokenizer.name})"
    columns = ("tenant", "corpus", "documents", "tokens", "bytes")
    about = {"store": str(store), "tokenizer": found.tokenizer._asdict()}
    data = {**about, "corpora": [info._asdict() for info in infos]}
    show(data, table(title, columns, rows), as_json=as_json)


@corpus.command()
def inspect(
    store: Root,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A corpus; by default all.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    document: Annotated[str | None, typer.Option(metavar="NAME", help="Show the beginning of this document.")] = None,
    continues: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Show what follows the end of this text, exactly.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most documents, and continuations, to list.")] = 20,
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Inspect a store: its segments, the documents, and the continuations of a text.

    Examples:

    `specplug corpus inspect ./store docs`

    `specplug corpus inspect ./store docs --document guide/start.md`

    `specplug corpus inspect ./store --continues "the terms of this"`
    """
    from specplug.tools.cli.corpus_inspect import Inspection

    inspection = Inspection(store, name, tenant, tokenizer, limit)
    if document is not None:
        data, shown = inspection.document(document)
    elif continues is not None:
        data, shown = inspection.continuations(continues)
    else:
        data, shown = inspection.describe()
    show(data, *shown, as_json=as_json)


@corpus.command()
def verify(store: Root, as_json: AsJson = False) -> None:
    """Read a whole store and check it: checksums, order, and consistency between files.

    The exit code is 1 if something is wrong; the intact parts still serve.

    Example: `specplug corpus verify ./store`
    """
    from specplug.corpus.store import Store
    from specplug.tools.cli.corpus_intake import progress_line

    found = Store(store)
    with progress_line(quiet=as_json) as update:
        problems = found.verify(lambda done, of: update(f"{done} of {of} segments"))
    shown: Any = f"{store} is intact: {sum(info.tokens for info in found.list()):,} tokens."
    if problems:
        shown = table("Problems", ("file", "what"), ((one.path, one.what) for one in problems))
    show({"ok": not problems, "problems": [one._asdict() for one in problems]}, shown, as_json=as_json)
    if problems:
        raise typer.Exit(1)
