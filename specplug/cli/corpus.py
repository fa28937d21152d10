"""`specplug corpus` commands: build, change and inspect a store of texts to draft from."""

from __future__ import annotations

from typing import Annotated

import typer

from specplug.cli.corpus_options import (
    Extend,
    Globs,
    MaxTokens,
    Name,
    NameField,
    NoMerge,
    Root,
    SkipBad,
    Sources,
    Tenant,
    TextField,
    Tokenizer,
)
from specplug.cli.output import AsJson, print_json, print_line, print_table, printable

corpus = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@corpus.callback()
def about() -> None:
    """Keep texts that answers are likely to quote, for a server to draft from.

    A store is a folder. It holds the texts as tokens of one model, in corpora, for one or several tenants. Serving
    processes pick up each change within about a second, without interruption.

    Example: `specplug corpus build ./store ./docs --tokenizer ./my-model`
    """


@corpus.command()
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
    name: Name = None,
    tenant: Tenant = "",
    globs: Globs = None,
    text_field: TextField = "text",
    name_field: NameField = None,
    skip_bad: SkipBad = False,
    extend: Extend = False,
    max_tokens: MaxTokens = None,
    no_merge: NoMerge = False,
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
    from specplug.cli.corpus_intake import Intake, reading, take_in

    how = reading(globs, text_field, name_field, skip_bad=skip_bad)
    intake = Intake(sources, name, how, tenant=tenant, extend=extend, max_tokens=max_tokens, merge=not no_merge)
    take_in(store, tokenizer, intake, create=True, quiet=as_json).show(as_json=as_json)


@corpus.command()
def add(
    store: Root,
    sources: Sources,
    tokenizer: Tokenizer = None,
    name: Name = None,
    tenant: Tenant = "",
    globs: Globs = None,
    text_field: TextField = "text",
    name_field: NameField = None,
    skip_bad: SkipBad = False,
    extend: Extend = False,
    max_tokens: MaxTokens = None,
    no_merge: NoMerge = False,
    as_json: AsJson = False,
) -> None:
    """Add corpora to an existing store, also while servers draft from it.

    Sources are read as by `specplug corpus build`. The store records its tokenizer.

    Examples:

    `specplug corpus add ./store ./handbook --tenant acme`

    `specplug corpus add ./store new-chunks.jsonl --name chunks --extend`
    """
    from specplug.cli.corpus_intake import Intake, reading, take_in

    how = reading(globs, text_field, name_field, skip_bad=skip_bad)
    intake = Intake(sources, name, how, tenant=tenant, extend=extend, max_tokens=max_tokens, merge=not no_merge)
    take_in(store, tokenizer, intake, create=False, quiet=as_json).show(as_json=as_json)


@corpus.command()
def sync(
    store: Root,
    sources: Sources,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="The target's tokenizer, for a new store or if it has moved.")
    ] = None,
    name: Name = None,
    tenant: Tenant = "",
    globs: Globs = None,
    text_field: TextField = "text",
    name_field: NameField = None,
    skip_bad: SkipBad = False,
    max_tokens: MaxTokens = None,
    no_merge: NoMerge = False,
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
    from specplug.cli.corpus_intake import Intake, reading, take_in
    from specplug.corpus.layout import STORE_FILE

    how = reading(globs, text_field, name_field, skip_bad=skip_bad)
    intake = Intake(
        sources, name, how, tenant=tenant, extend=True, max_tokens=max_tokens, merge=not no_merge, sync=True
    )
    create = tokenizer is not None and not (store / STORE_FILE).exists()
    take_in(store, tokenizer, intake, create=create, quiet=as_json).show(as_json=as_json)


@corpus.command()
def remove(
    store: Root,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The corpus.")],
    documents: Annotated[
        list[str] | None, typer.Option("--document", help="Only the documents of this name; repeat.")
    ] = None,
    tenant: Tenant = "",
    no_merge: NoMerge = False,
    as_json: AsJson = False,
) -> None:
    """Remove a corpus, or documents of it.

    Servers stop drafting from it as soon as they see the change. Its tokens stay on disk until their whole segment is
    removed or merged; `specplug corpus merge --whole` merges at once.

    Examples:

    `specplug corpus remove ./store handbook --tenant acme`

    `specplug corpus remove ./store docs --document guide/old.md`
    """
    from specplug.corpus.store import Store

    found = Store.open(store)
    removed = found.remove(name, documents=documents or None, tenant=tenant)
    merged = 0 if no_merge else found.merge(tenant).read
    if as_json:
        print_json({"store": str(store), "corpus": name, **removed._asdict(), "merged_segments": merged})
    else:
        print_line(f"Removed from {printable(name)}: documents {removed.documents:,}, tokens {removed.tokens:,}.")


@corpus.command("list")
def list_corpora(
    store: Root,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List a store's tenants, their corpora, and the corpora's sizes.

    Bytes are a corpus's share of files that it may share with others.

    Example: `specplug corpus list ./store`
    """
    from specplug.corpus.store import Store

    found = Store.open(store)
    infos = found.list(tenant)
    if as_json:
        about = {"store": str(store), "tokenizer": found.tokenizer._asdict()}
        print_json({**about, "corpora": [info._asdict() for info in infos]})
        return
    print_table(
        f"{store} (tokens of {printable(found.tokenizer.name)})",
        ("tenant", "corpus", "documents", "tokens", "bytes"),
        ((printable(one.tenant), printable(one.name), *(f"{count:,}" for count in one[2:])) for one in infos),
    )


@corpus.command()
def inspect(
    store: Root,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A corpus; by default all.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    document: Annotated[
        str | None, typer.Option("--document", metavar="NAME", help="Show the beginning of this document.")
    ] = None,
    continues: Annotated[
        str | None, typer.Option("--continues", metavar="TEXT", help="Show what follows the end of this text, exactly.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most documents, and continuations, to list.")] = 20,
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Inspect a store: its segments, their removed documents, the documents, and the continuations of a text.

    Examples:

    `specplug corpus inspect ./store docs`

    `specplug corpus inspect ./store docs --document guide/start.md`

    `specplug corpus inspect ./store --continues "the terms of this"`
    """
    from specplug.cli.corpus_shown import Looking

    looking = Looking(store, name, tenant, tokenizer, limit)
    if document is not None:
        parts = looking.document(document)
    elif continues is not None:
        parts = looking.continuations(continues)
    else:
        parts = looking.overview()
    if as_json:
        print_json({part.key: part.data for part in parts})
        return
    for part in parts:
        part.print()


@corpus.command()
def verify(store: Root, as_json: AsJson = False) -> None:
    """Read a whole store and check it: checksums, order, and consistency between files.

    The exit code is 1 if something is wrong; the intact parts still serve.

    Example: `specplug corpus verify ./store`
    """
    from specplug.cli.corpus_intake import counting
    from specplug.corpus.store import Store

    found = Store.open(store)
    with counting(quiet=as_json) as update:
        problems = found.verify(lambda done, of: update(f"{done} of {of} segments"))
    if as_json:
        print_json({"ok": not problems, "problems": [problem._asdict() for problem in problems]})
    elif problems:
        print_table("Problems", ("file", "what"), ((printable(one.path), printable(one.what)) for one in problems))
    else:
        print_line(f"{store} is intact: {sum(info.tokens for info in found.list()):,} tokens.")
    if problems:
        raise typer.Exit(1)


@corpus.command()
def merge(
    store: Root,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's segments.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Merge into as few segments as possible and drop what was removed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge small segments and those with many removed documents, without interrupting servers.

    `build`, `add` and `remove` merge by themselves where it is worthwhile.

    Example: `specplug corpus merge ./store --whole`
    """
    from specplug.corpus.store import Store

    merged = Store.open(store).merge(tenant, whole=whole)
    if as_json:
        print_json(merged._asdict())
    else:
        print_line(f"Read {merged.read} segments, and wrote {merged.written} in their place.")
