"""What `specplug corpus build` and `add` do: sources to documents to a store, with progress and figures."""

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

from specplug.cli.output import console, print_line, print_table, printable
from specplug.corpus.sources import STDIN, Reading, Skipped, read, stem
from specplug.corpus.store import Store
from specplug.corpus.tokenizers import Tokenizer
from specplug.errors import CorpusError

_SHOWN_EVERY = 0.2


@dataclass(frozen=True, slots=True)
class Intake:
    """What to add to a store.

    Attributes:
        sources: where it comes from.
        name: of the corpus; None: one corpus per source, called by its stem.
        reading: how sources are read.
        tenant: whose it is.
        extend: add to corpora that are there.
        max_tokens: that the tenant may have afterwards.
        merge: merge what is worth it when all is added.
    """

    sources: Sequence[str]
    name: str | None
    reading: Reading
    _: KW_ONLY
    tenant: str
    extend: bool
    max_tokens: int | None
    merge: bool

    def corpora(self) -> dict[str, list[str]]:
        """Return the sources of each corpus.

        Raises:
            CorpusError: a source is not there, a corpus lacks a name, or a name would be given twice.
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
class Outcome:
    """What was added: figures by corpus, what was left out, and how long it took."""

    store: str
    tenant: str
    tokenizer: str
    corpora: list[dict[str, Any]] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    seconds: float = 0.0
    tokenising: float = 0.0
    merged: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
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

    def print(self) -> None:
        """Print it for people."""
        columns = ("corpus", "documents", "tokens", "bytes", "bytes per token")
        print_table(
            f"Added to {self.store}",
            columns,
            (
                (printable(each["name"]), *(f"{each[key]:,}" for key in columns[1:4]), f"{each['bytes_per_token']:.2f}")
                for each in self.corpora
            ),
        )
        about = self.as_dict()
        share = 100 * self.tokenising / max(self.seconds, 1e-9)
        lines = [f"{about['tokens_per_second']:,.0f} tokens per second; {share:.0f} % of the time was tokenising."]
        if counts := self.skipped.counts():
            lines.append(f"Left out: {', '.join(f'{count} {kind}' for kind, count in counts.items())}.")
        lines += self.skipped.first_bad
        for line in lines:
            print_line(line)


def take_in(store: Store, tokenizer: Tokenizer, intake: Intake, *, quiet: bool) -> Outcome:
    """Add to a store what an intake says; each corpus is added whole or not at all."""
    corpora = intake.corpora()
    fields = replace(intake.reading.fields, vocab_size=tokenizer.fingerprint.vocab_size)
    reading = replace(intake.reading, fields=fields)
    outcome = Outcome(str(store.root), intake.tenant, tokenizer.fingerprint.name)
    started = time.perf_counter()
    with counting(quiet=quiet) as tell:
        for corpus, sources in corpora.items():
            contents = chain.from_iterable(read(source, reading, outcome.skipped) for source in sources)
            added = store.add(
                corpus,
                _timed(tokenizer.documents(contents), outcome),
                tenant=intake.tenant,
                extend=intake.extend,
                max_tokens=intake.max_tokens,
                progress=partial(_tell, tell, corpus),
            )
            outcome.corpora.append(
                {"name": corpus, **added._asdict(), "bytes_per_token": added.bytes / max(added.tokens, 1)}
            )
    outcome.seconds = time.perf_counter() - started
    if intake.merge:
        outcome.merged = store.merge(intake.tenant).read
    return outcome


def _tell(tell: Callable[[str], None], corpus: str, documents: int, tokens: int) -> None:
    tell(f"{corpus}: {documents:,} documents, {tokens:,} tokens")


def _timed(documents: Iterator[Any], outcome: Outcome) -> Iterator[Any]:
    while True:
        started = time.perf_counter()
        document = next(documents, None)
        outcome.tokenising += time.perf_counter() - started
        if document is None:
            return
        yield document


@contextmanager
def counting(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr while something takes long; gives the function that changes it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    out = console(stderr=True)
    with Progress(*columns, console=out, disable=quiet or not out.is_terminal, transient=True) as bar:
        task, last = bar.add_task("reading", total=None), 0.0

        def tell(line: str) -> None:
            nonlocal last
            if (now := time.perf_counter()) - last > _SHOWN_EVERY:
                last = now
                bar.update(task, description=printable(line))

        yield tell
