"""Adding and synchronising documents, atomically."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specplug.corpus.documents import Document, Tokens
from specplug.corpus.manifest import Manifest
from specplug.corpus.names import check_name, name_hash, shortened
from specplug.corpus.segment import NO_TEXT
from specplug.corpus.segment_arrays import NewDocument, checked
from specplug.corpus.tenant import Tenant
from specplug.corpus.writing import changing
from specplug.errors import CorpusError, SpecplugError

Progress = Callable[[int, int], None]

_BARRIER = np.full(1, NO_TEXT, np.int32)


class Added(NamedTuple):
    """The result of adding documents.

    Attributes:
        tokens: of their bodies.
        empty: skipped documents without tokens.
        segments, bytes: number and size of their segments, before any is merged with others.
        present: skipped documents that the corpus already had, with identical content.
        same_name: added documents that share their name with another document of the corpus.
    """

    documents: int
    tokens: int
    empty: int
    segments: int
    bytes: int
    present: int = 0
    same_name: int = 0


class Synced(NamedTuple):
    """The result of synchronising a corpus.

    Attributes:
        added, replaced, removed, unchanged: documents by what happened to their names.
        empty: skipped documents without tokens.
        documents, tokens: documents and tokens of the corpus now.
        segments, bytes: number and size of the new documents' segments, before any is merged with others.
    """

    added: int
    replaced: int
    removed: int
    unchanged: int
    empty: int
    documents: int
    tokens: int
    segments: int
    bytes: int


class Addition:
    """Documents for one corpus of a tenant; see `Store.add` for the parameters."""

    def __init__(self, tenant: Tenant, corpus: str, max_tokens: int | None, progress: Progress | None) -> None:
        self._tenant = tenant
        self._corpus = check_name("corpus", corpus)
        self._who = f"corpus {shortened(corpus)}"
        self._max_tokens = max_tokens
        self._progress = progress
        self._written: Counter[int] = Counter()  # hashes of names
        self._tokens = self._empty = self._kept = self._kept_tokens = self._same_name = 0
        self._present: Present | None = None

    def add(self, documents: Iterable[Document], *, extend: bool) -> Added:
        """Add them, all or none; see `Store.add`."""
        self._admit(self._tenant.manifest(), extend)
        with changing(self._tenant) as change:
            self._admit(change.before, extend)
            if extend:
                self._present = Present(self._tenant, change.before, self._corpus)
            entries = change.added(self._new(documents, change.before.tokens))
            if not entries and not self._kept:
                raise self._nothing("nothing to add")
            if entries:
                change.commit((*change.before.segments, *entries))
        size = sum(entry.size for entry in entries)
        written = self._written.total()
        return Added(written, self._tokens, self._empty, len(entries), size, self._kept, self._same_name)

    def sync(self, documents: Iterable[Document]) -> Synced:
        """Add, replace and remove documents atomically; see `Store.sync`."""
        with changing(self._tenant) as change:
            self._present = present = Present(self._tenant, change.before, self._corpus)
            others = change.before.tokens - present.tokens
            entries = change.added(self._new(documents, others, replaces=True))
            if not entries and not self._kept:
                what = "no documents to bring the corpus up to date with"
                raise self._nothing(what, "If it is to be empty, remove it")
            left = present.names_left()
            if entries or left:
                change.commit((*change.without(present.left), *entries))
        written = self._written.total()
        replaced = (left & self._written).total()
        return Synced(
            added=written - replaced,
            replaced=replaced,
            removed=left.total() - replaced,
            unchanged=self._kept,
            empty=self._empty,
            documents=written + self._kept,
            tokens=self._tokens + self._kept_tokens,
            segments=len(entries),
            bytes=sum(entry.size for entry in entries),
        )

    def _nothing(self, what: str, remedy: str | None = None) -> SpecplugError:
        found = f"{self._empty} documents, all of them empty" if self._empty else "no documents"
        return CorpusError.build(what, who=self._who, found=found, remedy=remedy)

    def _admit(self, manifest: Manifest, extend: bool) -> None:
        if not extend and self._corpus in manifest.corpora():
            raise CorpusError.build(
                "a corpus of this name is there already",
                who=self._who,
                remedy="Remove it first, extend it (--extend), or bring it up to date by `specplug corpus sync`",
            )

    def _check_size(self, present: int) -> None:
        if self._max_tokens is not None and present + self._tokens > self._max_tokens:
            raise CorpusError.build(
                "too much text for one tenant",
                who=self._who,
                found=f"{self._tokens} tokens or more beside {present} that it has",
                expected=f"max_tokens {self._max_tokens} at most",
                remedy="Remove corpora, or raise corpora.max_tokens",
            )

    def _new(self, documents: Iterable[Document], present: int, *, replaces: bool = False) -> Iterator[NewDocument]:
        """Yield the documents that the corpus does not have yet with identical content.

        The tenant has `present` tokens; if the documents replace the corpus's, its own are not among these.
        """
        for document in documents:
            texts = checked(document, self._tenant.tokenizer.vocab_size)
            if not texts:
                self._empty += 1
                continue
            new = self._present is None or not self._present.take(document.name, texts)
            if new:
                self._written[name_hash(document.name.encode())] += 1
                self._tokens += len(texts[0])
                self._same_name += self._present is not None and self._present.has(document.name)
                self._check_size(present + self._kept_tokens * replaces)
            else:
                self._kept += 1
                self._kept_tokens += len(texts[0])
            if self._progress is not None:
                self._progress(self._written.total() + self._kept, self._tokens)
            if new:
                yield NewDocument(self._corpus, document.name.encode(), texts)


class Present:
    """The documents of a corpus.  Each can be taken once, so two identical documents match two of the new ones.

    Attributes:
        left: [d] bool of each segment, true for the corpus's documents that were not taken.
        tokens: tokens of the corpus.
    """

    def __init__(self, tenant: Tenant, manifest: Manifest, corpus: str) -> None:
        self._corpus = corpus
        self._segments = {entry: tenant.open(entry) for entry in manifest.segments if entry.has(corpus)}
        self.left = {entry: it.corpus_of == it.corpora.index(corpus) for entry, it in self._segments.items()}
        self.tokens = sum(int(self._segments[entry].lengths[own].sum()) for entry, own in self.left.items())

    def take(self, name: str, texts: Sequence[Tokens]) -> bool:
        """Take a document with this name and these texts if there is one left; return whether there was."""
        wanted = np.concatenate([part for text in texts for part in (text, _BARRIER)])
        for entry, segment in self._segments.items():
            for index in segment.find(name, self._corpus):
                found = segment.text[segment.starts[index] : segment.starts[index + 1]]
                if self.left[entry][index] and np.array_equal(found, wanted):
                    self.left[entry][index] = False
                    return True
        return False

    def has(self, name: str) -> bool:
        """Return whether the corpus has a document of this name."""
        return any(segment.find(name, self._corpus) for segment in self._segments.values())

    def names_left(self) -> Counter[int]:
        """Return the hashes of the names of the documents that were not taken."""
        return Counter(
            name_hash(self._segments[entry].name_bytes(int(index)))
            for entry, left in self.left.items()
            for index in np.flatnonzero(left)
        )
