"""Intake of `specplug corpus build`, `add` and `sync`: reads sources into documents and adds them to a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from specplug.corpus.adding import Added, Synced
from specplug.corpus.documents import Content, documents_from
from specplug.corpus.segment_arrays import load_sorting
from specplug.corpus.sources import STDIN, Ids, Reading, Skipped, read, stem, tokenizer_of
from specplug.corpus.store import Store
from specplug.errors import CorpusError
from specplug.text.tokenizers import load_tokenizer
from specplug.tools.cli.output import console, printable_text, table

Update = Callable[[str], None]

_MOST_BAD = 500
_ADDED = ("documents", "tokens", "bytes", "bytes_per_token")
_SYNCED = ("added", "replaced", "removed", "unchanged", "tokens")


def take_in(
    root: Path,
    tokenizer: str | None,
    sources: Sequence[str],
    name: str | None,
    how: Reading,
    *,
    create: bool,
    quiet: bool,
    sync: bool = False,
    **given: Any,
) -> dict[str, Any]:
    """Add corpora to a store, or with `sync` replace their documents, each whole or not at all.

    To `create` a store requires a tokenizer.  Tenant, `max_tokens` and, unless `sync`, `extend` are `given` as
    `Store.add` and `Store.sync` take them.  The result has the figures by corpus, the counts of skipped files, and the
    time taken without start-up, ready for JSON.  A `SpecplugError` of an invalid intake or unreadable sources comes
    before anything is created.
    """
    corpora = _corpora(sources, name)
    store = None if create else Store(root)
    loaded = load_tokenizer(tokenizer or "") if store is None else tokenizer_of(store, tokenizer)
    how = replace(how, vocab_size=loaded.fingerprint.vocab_size)
    skipped = Skipped()
    tokenising = [0.0]
    found: list[dict[str, Any]] = []
    with progress_line(quiet=quiet) as update:
        _check_readable(corpora, how, update)
        store = Store.create(root, loaded.fingerprint) if store is None else store
        load_sorting()
        started = time.perf_counter()
        change: Callable[..., Added | Synced] = store.sync if sync else store.add
        for corpus, members in corpora.items():
            contents = _read(members, how, skipped)
            documents = _timed(documents_from(contents, loaded.encode_many), tokenising)
            done = change(corpus, documents, progress=_progress(update, corpus), **given)._asdict()
            per_token = {} if sync else {"bytes_per_token": done["bytes"] / max(done["tokens"], 1)}
            found.append({"name": corpus, **done, **per_token})
    seconds = time.perf_counter() - started
    return {
        "store": str(root),
        "tenant": given["tenant"],
        "tokenizer": loaded.fingerprint.name,
        "corpora": found,
        "skipped": skipped.counts(),
        "first_bad": skipped.first_bad,
        "seconds": seconds,
        "seconds_tokenising": tokenising[0],
        "tokens_per_second": sum(each["tokens"] for each in found) / max(seconds, 1e-9),
    }


def shown_intake(found: dict[str, Any], *, sync: bool) -> Iterator[Table | str]:
    """Yield the result of `take_in` as a table with remarks."""
    keys = _SYNCED if sync else _ADDED
    title = "Brought up to date in" if sync else "Added to"
    columns = [key.replace("_", " ") for key in keys]
    rows = [(each["name"], *(_figure(each[key]) for key in keys)) for each in found["corpora"]]
    yield table(f"{title} {found['store']}", ("corpus", *columns), rows)
    share = 100 * found["seconds_tokenising"] / max(found["seconds"], 1e-9)
    yield f"{found['tokens_per_second']:,.0f} tokens per second; {share:.0f} % of the time was spent tokenising."
    if counts := found["skipped"]:
        yield f"Left out: {', '.join(f'{count} {kind}' for kind, count in counts.items())}."
    for each in found["corpora"]:
        if there := each.get("present"):
            yield f"{each['name']} had {there:,} of the documents already: they were not added again."
        if same := each.get("same_name"):
            yield (
                f"{each['name']} has {same:,} documents beside others of the same name and another text; "
                "`specplug corpus sync` replaces."
            )
    yield from found["first_bad"]


def _corpora(sources: Sequence[str], name: str | None) -> dict[str, list[str]]:
    for source in sources:
        if source != STDIN and not os.path.exists(source):
            raise CorpusError.build("no such source", found=repr(source), expected="a file, a folder, or '-'")
    if name is not None:
        return {name: list(sources)}
    found: dict[str, list[str]] = {}
    for source in sources:
        own = stem(source)
        if own is None or own in found:
            what = "standard input has no name" if own is None else f"two sources are called {own!r}"
            raise CorpusError.build(what, who="--name", remedy="Name the corpus with --name")
        found[own] = [source]
    return found


def _read(sources: Sequence[str], how: Reading, skipped: Skipped) -> Iterator[Content]:
    ids = Ids()
    return chain.from_iterable(read(source, how, skipped, ids) for source in sources)


def _check_readable(corpora: dict[str, list[str]], how: Reading, update: Update) -> None:
    """Read all sources once before anything is built, so that all problems are reported together.

    Standard input can be read only once, so its first bad line ends the build.
    """
    if how.skip_bad:
        return
    bad = Skipped(most_bad=_MOST_BAD)
    for name, sources in corpora.items():
        files = [source for source in sources if source != STDIN]
        for number, _ in enumerate(_read(files, replace(how, skip_bad=True), bad), 1):
            update(f"looking at {name}: {number:,} documents")
    if count := bad.numbers["bad"]:
        more = [f"... and {count - _MOST_BAD:,} more"] if count > _MOST_BAD else []
        raise CorpusError(
            "\n  ".join([f"{count:,} of the sources' documents cannot be read:", *bad.first_bad, *more])
            + "\nNothing was changed. Fix or convert them, exclude them with --glob, or skip them with --skip-bad"
        )


def _figure(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def _progress(update: Update, corpus: str) -> Callable[[int, int], None]:
    return lambda documents, tokens: update(f"{corpus}: {documents:,} documents, {tokens:,} tokens")


def _timed(documents: Iterator[Any], seconds: list[float]) -> Iterator[Any]:
    """Yield the documents, and add the time that each took to `seconds[0]`."""
    while True:
        started = time.perf_counter()
        document = next(documents, None)
        seconds[0] += time.perf_counter() - started
        if document is None:
            return
        yield document


@contextmanager
def progress_line(*, quiet: bool) -> Iterator[Update]:
    """Show a progress line on stderr; yield the function that changes it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    out = console(stderr=True)
    with Progress(*columns, console=out, disable=quiet or not out.is_terminal, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda line: bar.update(task, description=printable_text(line))
