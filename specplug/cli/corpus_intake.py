"""Intake of `specplug corpus build` and `add`: reads sources into documents and adds them to a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from specplug.cli.output import console, print_json, print_line, print_table, printable
from specplug.corpus.lines import Fields
from specplug.corpus.sources import STDIN, Reading, Skipped, read, stem
from specplug.corpus.status import Added, Synced
from specplug.corpus.store import Store
from specplug.corpus.tokenizing import documents_from, tokenizer_of
from specplug.errors import CorpusError
from specplug.text.loading import load_tokenizer

_SHOWN_EVERY = 0.2
_MOST_BAD = 500
_ADDED = ("documents", "tokens", "bytes", "bytes_per_token")
_SYNCED = ("added", "replaced", "removed", "unchanged", "tokens")


def reading(globs: list[str] | None, text_field: str, name_field: str | None, *, skip_bad: bool) -> Reading:
    """Return how sources are read, according to the options."""
    fields = Fields(text=text_field, name=name_field)
    return Reading(globs=tuple(globs or ()), fields=fields, skip_bad=skip_bad)


@dataclass(frozen=True, slots=True)
class Intake:
    """Corpora to add to a store.

    Attributes:
        sources: files, folders, or "-" for standard input.
        name: name of the corpus; None: one corpus per source, named by its stem.
        reading: how sources are read.
        tenant: the tenant that owns the corpora.
        extend: add to existing corpora.
        max_tokens: limit on the tenant's tokens afterwards.
        merge: merge segments where worthwhile after adding.
        sync: replace the documents of existing corpora.
    """

    sources: Sequence[str]
    name: str | None
    reading: Reading
    _: KW_ONLY
    tenant: str
    extend: bool
    max_tokens: int | None
    merge: bool
    sync: bool = False

    def corpora(self) -> dict[str, list[str]]:
        """Return the sources of each corpus.

        Raises:
            CorpusError: a source does not exist, a corpus lacks a name, or a name would be given twice.
        """
        for source in self.sources:
            if source != STDIN and not Path(source).exists():
                raise CorpusError.build("no such source", found=repr(source), expected="a file, a folder, or '-'")
        if self.name is not None:
            return {self.name: list(self.sources)}
        found: dict[str, list[str]] = {}
        for source in self.sources:
            name = stem(source)
            if name is None or name in found:
                what = "standard input has no name" if name is None else f"two sources are called {name!r}"
                raise CorpusError.build(what, who="--name", remedy="Name the corpus with --name")
            found[name] = [source]
        return found


@dataclass(slots=True)
class IntakeResult:
    """Result of an intake: figures by corpus, counts of skipped files, and the time taken."""

    store: str
    tenant: str
    tokenizer: str
    corpora: list[dict[str, Any]] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    seconds: float = 0.0
    tokenising: float = 0.0
    merged: int = 0
    sync: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the result ready for JSON."""
        tokens = sum(each["tokens"] for each in self.corpora)
        return {
            "store": self.store,
            "tenant": self.tenant,
            "tokenizer": self.tokenizer,
            "corpora": self.corpora,
            "skipped": self.skipped.counts(),
            "first_bad": self.skipped.first_bad,
            "seconds": self.seconds,
            "seconds_tokenising": self.tokenising,
            "tokens_per_second": tokens / max(self.seconds, 1e-9),
            "merged_segments": self.merged,
        }

    def show(self, *, as_json: bool) -> None:
        """Print the result as tables or as JSON."""
        print_json(self.as_dict()) if as_json else self._print()

    def _print(self) -> None:
        columns = _SYNCED if self.sync else _ADDED
        print_table(
            f"{'Brought up to date in' if self.sync else 'Added to'} {self.store}",
            ("corpus", *(key.replace("_", " ") for key in columns)),
            ((printable(each["name"]), *(_figure(each[key]) for key in columns)) for each in self.corpora),
        )
        about = self.as_dict()
        share = 100 * self.tokenising / max(self.seconds, 1e-9)
        lines = [
            f"{about['tokens_per_second']:,.0f} tokens per second; {share:.0f} % of the time was spent tokenising."
        ]
        if counts := self.skipped.counts():
            lines.append(f"Left out: {', '.join(f'{count} {kind}' for kind, count in counts.items())}.")
        for each in self.corpora:
            if there := each.get("present"):
                lines.append(f"{each['name']} had {there:,} of the documents already: they were not added again.")
            if same := each.get("same_name"):
                lines.append(
                    f"{each['name']} has {same:,} documents beside others of the same name and another text; "
                    "`specplug corpus sync` replaces."
                )
        lines += self.skipped.first_bad
        for line in lines:
            print_line(line)


def take_in(root: Path, tokenizer: str | None, intake: Intake, *, create: bool, quiet: bool) -> IntakeResult:
    """Add the corpora of an intake to a store; each corpus is added, or brought up to date, whole or not at all.

    Args:
        root: the store's folder.
        tokenizer: name of the tokenizer; None: the store's.
        intake: the corpora to add.
        create: create the store if there is none; requires a tokenizer.
        quiet: show no progress.

    Raises:
        SpecplugError: the intake is invalid or sources cannot be read; raised before anything is created.
    """
    corpora = intake.corpora()
    if create:
        loaded, store = load_tokenizer(tokenizer or ""), None
    else:
        store = Store.open(root)
        loaded = tokenizer_of(store, tokenizer)
    fields = replace(intake.reading.fields, vocab_size=loaded.fingerprint.vocab_size)
    how = replace(intake.reading, fields=fields)
    outcome = IntakeResult(str(root), intake.tenant, loaded.fingerprint.name, sync=intake.sync)
    started = time.perf_counter()
    with counting(quiet=quiet) as update:
        _check_readable([source for sources in corpora.values() for source in sources], how, update)
        store = Store.create(root, loaded.fingerprint) if store is None else store
        for corpus, sources in corpora.items():
            contents = chain.from_iterable(read(source, how, outcome.skipped) for source in sources)
            documents = _timed(documents_from(contents, loaded.encode_many), outcome)
            about: dict[str, Any] = {"tenant": intake.tenant, "max_tokens": intake.max_tokens}
            about["progress"] = partial(_show_progress, update, corpus)
            done: Added | Synced
            if intake.sync:
                done = store.sync(corpus, documents, **about)
            else:
                done = store.add(corpus, documents, extend=intake.extend, **about)
            per_token = {} if intake.sync else {"bytes_per_token": done.bytes / max(done.tokens, 1)}
            outcome.corpora.append({"name": corpus, **done._asdict(), **per_token})
    outcome.seconds = time.perf_counter() - started
    if intake.merge:
        outcome.merged = store.merge(intake.tenant).read
    return outcome


def _check_readable(sources: Sequence[str], how: Reading, update: Callable[[str], None]) -> None:
    """Read all sources once before anything is built, so that all problems are reported together.

    Standard input can be read only once, so its first bad line ends the build.
    """
    if how.skip_bad:
        return
    bad = Skipped(most_bad=_MOST_BAD)
    for source in sources:
        if source != STDIN:
            for number, _ in enumerate(read(source, replace(how, skip_bad=True), bad), 1):
                update(f"looking at {source}: {number:,} documents")
    if bad.bad:
        more = [f"... and {bad.bad - _MOST_BAD:,} more"] if bad.bad > _MOST_BAD else []
        raise CorpusError(
            "\n  ".join([f"{bad.bad:,} of the sources' documents cannot be read:", *bad.first_bad, *more])
            + "\nNothing was changed. Fix or convert them, exclude them with --glob, or skip them with --skip-bad"
        )


def _figure(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def _show_progress(update: Callable[[str], None], corpus: str, documents: int, tokens: int) -> None:
    update(f"{corpus}: {documents:,} documents, {tokens:,} tokens")


def _timed(documents: Iterator[Any], outcome: IntakeResult) -> Iterator[Any]:
    while True:
        started = time.perf_counter()
        document = next(documents, None)
        outcome.tokenising += time.perf_counter() - started
        if document is None:
            return
        yield document


@contextmanager
def counting(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress line on stderr; yield the function that changes it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    out = console(stderr=True)
    with Progress(*columns, console=out, disable=quiet or not out.is_terminal, transient=True) as bar:
        task, last = bar.add_task("reading", total=None), 0.0

        def update(line: str) -> None:
            nonlocal last
            if (now := time.perf_counter()) - last > _SHOWN_EVERY:
                last = now
                bar.update(task, description=printable(line))

        yield update
