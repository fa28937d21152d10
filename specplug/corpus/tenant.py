"""A tenant's folder: reading its documents, and changing them exclusively."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from specplug.corpus.changing import Change, clean, opened_entry
from specplug.corpus.documents import Tokens
from specplug.corpus.files import check_folder, fsync_folder, held, make_folder, os_errors_named, yield_gil
from specplug.corpus.manifest import Manifest, SegmentEntry, commit, load
from specplug.corpus.names import hint, shortened
from specplug.corpus.segment import Segment, check_sections
from specplug.errors import CorpusError, SpecplugError
from specplug.text.fingerprint import Fingerprint

TENANTS = "tenants"
LOCK_FILE = "lock"

T = TypeVar("T")

_TRIES = 8

_log = logging.getLogger("specplug")


class CorpusInfo(NamedTuple):
    """A corpus.  `bytes`: its share of its segments' files, by tokens."""

    tenant: str
    name: str
    documents: int
    tokens: int
    bytes: int


class Removed(NamedTuple):
    """The result of a removal: the amounts removed."""

    documents: int
    tokens: int


class Tenant:
    """One tenant of a store; without a name, the one that its manifest names.

    Args:
        folder: its folder, which need not exist.
        tokenizer: the store's.
        segment_tokens, lock_seconds: as of `Store`.
        name: its name.
    """

    def __init__(
        self, folder: Path, tokenizer: Fingerprint, segment_tokens: int, lock_seconds: float, name: str | None = None
    ) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self._segment_tokens = segment_tokens
        self._lock_seconds = lock_seconds
        self._name = name

    def manifest(self) -> Manifest:
        """Return its current manifest; raises CorpusError as `manifest.load` does."""
        return load(self.folder, self._name)

    def open(self, entry: SegmentEntry) -> Segment:
        """Open a segment; raises CorpusError as `opened_entry` does."""
        return opened_entry(self.folder, entry, self.tokenizer)

    def checked(self, entry: SegmentEntry) -> Segment:
        """Open a segment and read all of it, before it is written anew; raises CorpusError if it is damaged."""
        segment = self.open(entry)
        check_sections(segment)  # a torn one must not get a new checksum
        return segment

    def reading(self, read: Callable[[Manifest], T]) -> T:
        """Return the result of `read` on the manifest; retry if segments disappeared meanwhile, as merged ones do."""
        for _ in range(_TRIES):
            manifest = self.manifest()
            try:
                return read(manifest)
            except CorpusError:
                if self.manifest().generation == manifest.generation:
                    raise
        return read(self.manifest())

    def infos(self) -> list[CorpusInfo]:
        """Return the corpora, one entry each, older ones first."""
        manifest = self.manifest()
        infos = []
        for name in manifest.corpora():
            parts = [(entry, part) for entry in manifest.segments for part in entry.parts if part.corpus == name]
            documents = sum(part.documents for _, part in parts)
            tokens = sum(part.tokens for _, part in parts)
            size = round(sum(entry.size * part.tokens / entry.tokens for entry, part in parts))
            infos.append(CorpusInfo(manifest.tenant, name, documents, tokens, size))
        return infos

    def newest_document(self, name: str, corpus: str | None) -> Tokens:
        """Return the body of the newest document with a name; see `Store.document`."""

        def read(manifest: Manifest) -> Tokens:
            if corpus is not None:
                check_corpus(manifest, corpus)
            searched = []
            for entry in reversed(manifest.segments):
                if corpus is None or entry.has(corpus):
                    searched.append(segment := self.open(entry))
                    for index in reversed(segment.find(name, corpus)):
                        return segment.document(index)
            raise _unknown_document(name, searched, corpus)

        return self.reading(read)

    def remove_corpus(self, corpus: str) -> Removed:
        """Remove a whole corpus, from damaged segments too."""
        with self.changing(corpus) as change:
            entries = list[SegmentEntry]()
            for entry in change.before.segments:
                entries += self._without_corpus(change, entry, corpus) if entry.has(corpus) else [entry]
            return _removed(change.before, change.commit(entries))

    def remove_documents(self, corpus: str, names: Sequence[str]) -> Removed:
        """Remove all documents of a corpus that have one of the names.  If any name is missing, nothing is removed."""
        with self.changing(corpus) as change:
            searched = {entry: self.open(entry) for entry in change.before.segments if entry.has(corpus)}
            found = {entry: _found(segment, names, corpus) for entry, segment in searched.items()}
            for number, name in enumerate(names):
                if not any(indices[number] for indices in found.values()):
                    raise _unknown_document(name, [*searched.values()], corpus)
            entries = list[SegmentEntry]()
            for entry in change.before.segments:
                gone = [index for indices in found.get(entry, ()) for index in indices]
                if not gone:
                    entries.append(entry)
                    continue
                kept = np.ones(entry.documents, bool)
                kept[gone] = False
                entries += change.kept(self.checked(entry), kept)
            return _removed(change.before, change.commit(entries))

    @contextmanager
    def changing(self, corpus: str | None = None) -> Iterator[Change]:
        """Hold the tenant's lock for one change.

        Args:
            corpus: the existing corpus that is changed; without it, the tenant is created if it does not exist.

        Raises:
            CorpusError: the lock took too long to get, or there is no such corpus; then no lock is created.
        """
        if corpus is None:
            self._prepare()
        else:
            check_corpus(self.manifest(), corpus)
        with held(self.folder / LOCK_FILE, self._lock_seconds):
            manifest = self.manifest()
            if corpus is not None:
                check_corpus(manifest, corpus)
            if not manifest.generation:
                manifest = commit(self.folder, manifest, ())  # it comes before the first segment
            try:
                yield Change(self.folder, manifest, self.tokenizer, self._segment_tokens)
            finally:
                clean(self.folder, lambda: self.manifest().files())

    def _prepare(self) -> None:
        with os_errors_named(self.folder):
            if not os.path.lexists(self.folder):
                make_folder(self.folder.parent)
                make_folder(self.folder)
                fsync_folder(self.folder.parent)
            check_folder(self.folder)

    def _without_corpus(self, change: Change, entry: SegmentEntry, corpus: str) -> list[SegmentEntry]:
        left = tuple([part for part in entry.parts if part.corpus != corpus])
        if not left:
            return []
        try:
            segment = self.checked(entry)
        except CorpusError as error:
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                raise  # it may be whole
            _log.warning(
                "corpus store: %s: it serves nothing from now on, and goes with the last of its corpora", error
            )
            return [replace(entry, parts=left)]
        return change.kept(segment, segment.corpus_of != segment.corpora.index(corpus))


def folders(root: Path) -> list[Path]:
    """Return the folders of all tenants, including links, sorted by name; raises OSError."""
    check_folder(root / TENANTS)
    with os.scandir(root / TENANTS) as found:
        named = [entry for entry in found if entry.name[:2] in ("t-", "l-")]
        return sorted(Path(entry.path) for entry in named if entry.is_dir() or entry.is_symlink())


def check_corpus(manifest: Manifest, corpus: str) -> None:
    """Raise CorpusError if there is no such corpus."""
    known = manifest.corpora()
    if corpus not in known:
        who = f"tenant {shortened(manifest.tenant)}" if manifest.tenant else None
        raise CorpusError.build("no such corpus", who=who, found=shortened(corpus), remedy=hint(corpus, known))


def _found(segment: Segment, names: Sequence[str], corpus: str) -> list[list[int]]:
    """Return the documents of a corpus with each of the names."""
    found = []
    for at, name in enumerate(names):
        if not at % 64:
            yield_gil()
        found.append(segment.find(name, corpus))
    return found


def _removed(before: Manifest, after: Manifest) -> Removed:
    return Removed(before.documents - after.documents, before.tokens - after.tokens)


def _unknown_document(name: str, searched: Sequence[Segment], corpus: str | None) -> SpecplugError:
    known = (
        segment.name(index)
        for segment in searched
        for index in range(len(segment))
        if corpus in (None, segment.corpora[segment.corpus_of[index]])
    )
    who = None if corpus is None else f"corpus {shortened(corpus)}"
    return CorpusError.build("no such document", who=who, found=shortened(name), remedy=hint(name, known))
