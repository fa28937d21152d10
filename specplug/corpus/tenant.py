"""A tenant's folder: reading its documents, and changing them exclusively."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from specplug.corpus.building import Builder
from specplug.corpus.documents import Tokens
from specplug.corpus.files import (
    check_folder,
    fsync_folder,
    held,
    lock,
    make_folder,
    open_lock,
    os_errors_named,
    yield_gil,
)
from specplug.corpus.manifest import MANIFEST_FILE, Manifest, SegmentEntry, commit, load
from specplug.corpus.names import hint, shortened
from specplug.corpus.segment import SEGMENT_ENDING, LiveSegment, Segment, write_segment
from specplug.errors import CorpusError, SpecplugError
from specplug.text.fingerprint import Fingerprint

TENANTS = "tenants"
LOCK_FILE, MERGE_LOCK_FILE, BUILDING_LOCK_FILE = "lock", "merging", "building"

_OWN_FILE = re.compile(r"[0-9a-f]{16}-\d{1,9}\.(?:safetensors|tmp)")  # segments, also those of killed writers

T = TypeVar("T")

_TRIES = 8


class CorpusInfo(NamedTuple):
    """The live part of a corpus.  `bytes`: its share of its segments' files, by tokens."""

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
    """One tenant of a store; without a name, the one that its manifest names."""

    def __init__(self, folder: Path, tokenizer: Fingerprint, lock_seconds: float, name: str | None = None) -> None:
        self.folder, self.tokenizer, self._lock_seconds, self._name = folder, tokenizer, lock_seconds, name

    def manifest(self) -> Manifest:
        """Return its current manifest; raises CorpusError as `manifest.load` does."""
        return load(self.folder, self._name)

    def open(self, entry: SegmentEntry) -> LiveSegment:
        """Open a segment; raises CorpusError as `opened_entry` and `SegmentEntry.applied_to` do."""
        return entry.applied_to(opened_entry(self.folder, entry, self.tokenizer))

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
        """Return the live corpora, one entry each, older ones first."""
        manifest = self.manifest()
        infos = []
        for name in manifest.corpora():
            parts = [(entry, part) for entry in manifest.segments for part in entry.live if part.corpus == name]
            documents, tokens = sum(part.documents for _, part in parts), sum(part.tokens for _, part in parts)
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
                    searched.append(live := self.open(entry))
                    for index in reversed(live.find(name, corpus)):
                        return live.segment.document(index)
            raise _unknown_document(name, searched, corpus)

        return self.reading(read)

    def remove_corpus(self, corpus: str) -> Removed:
        """Remove a whole corpus.  Opens no segment, so that a torn one can be removed."""
        with self._alone_with(corpus) as manifest:
            parts = [[part for part in entry.live if part.corpus != corpus] for entry in manifest.segments]
            entries = [replace(entry, live=tuple(live)) for entry, live in zip(manifest.segments, parts, strict=True)]
            return self._commit_removal(manifest, entries)

    def remove_documents(self, corpus: str, names: Sequence[str]) -> Removed:
        """Remove all documents of a corpus that have one of the names.  If any name is missing, nothing is removed."""
        with self._alone_with(corpus) as manifest:
            missing, entries, searched = set(names), list(manifest.segments), []
            for number, entry in enumerate(entries):
                if not entry.has(corpus):
                    continue
                searched.append(live := self.open(entry))
                dead = live.mask
                for at, name in enumerate(names):
                    if not at % 64:
                        yield_gil()
                    if which := live.find(name, corpus):
                        missing.discard(name)
                        dead[which] = 1
                entries[number] = SegmentEntry.of(live.segment, dead)
            for name in names:
                if name in missing:
                    raise _unknown_document(name, searched, corpus)
            return self._commit_removal(manifest, entries)

    def prepare(self) -> None:
        """Create its folder, and an empty manifest, which comes before the first segment."""
        with os_errors_named(self.folder):
            if not os.path.lexists(self.folder):
                make_folder(self.folder.parent)
                make_folder(self.folder)
                fsync_folder(self.folder.parent)
            check_folder(self.folder)
        if not os.path.lexists(self.folder / MANIFEST_FILE):
            with self.alone() as manifest:
                if not manifest.generation:
                    commit(self.folder, manifest, ())

    @contextmanager
    def alone(self) -> Iterator[Manifest]:
        """Hold the lock for changes; yields the manifest.  Raises CorpusError if the lock takes too long to get."""
        with held(self.folder / LOCK_FILE, self._lock_seconds):
            yield self.manifest()

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Hold the lock for merging its segments."""
        with held(self.folder / MERGE_LOCK_FILE, self._lock_seconds):
            yield

    @contextmanager
    def building(self) -> Iterator[Callable[[Builder], SegmentEntry]]:
        """Write segments that no manifest names yet; nobody deletes them meanwhile.

        Yields a function that writes a builder's documents as the next segment, and returns its entry.  On exit, and if
        the process dies then by the next one that changes the tenant, segments that were not committed are deleted.
        """
        marker = self.folder / BUILDING_LOCK_FILE
        with os_errors_named(marker):
            handle = open_lock(marker)
        identity, count = secrets.token_hex(8), 0

        def write(builder: Builder) -> SegmentEntry:
            nonlocal count
            path = self.folder / f"{identity}-{count}{SEGMENT_ENDING}"
            count += 1
            write_segment(path, builder.sections(), builder.corpora, self.tokenizer)
            return SegmentEntry.of(Segment(path))

        try:
            lock(handle, marker, fcntl.LOCK_SH)
            yield write
        finally:
            os.close(handle)
            clean(self.folder)

    def commit(self, before: Manifest, entries: Iterable[SegmentEntry]) -> Manifest:
        """Commit these segments, and delete those that are no longer used; return the manifest.  Call within `alone`.

        Segments without live documents are left out.
        """
        manifest = commit(self.folder, before, [entry for entry in entries if entry.live])
        for file in before.files() - manifest.files():
            with suppress(OSError):  # `clean` deletes it later
                (self.folder / file).unlink()
        clean(self.folder)
        return manifest

    @contextmanager
    def _alone_with(self, corpus: str) -> Iterator[Manifest]:
        """Hold the lock for changes of a corpus; raises CorpusError, without creating a lock, if there is none."""
        check_corpus(self.manifest(), corpus)
        with self.alone() as manifest:
            check_corpus(manifest, corpus)
            yield manifest

    def _commit_removal(self, before: Manifest, entries: Iterable[SegmentEntry]) -> Removed:
        after = self.commit(before, entries)
        return Removed(before.documents - after.documents, before.tokens - after.tokens)


def opened_entry(
    folder: Path, entry: SegmentEntry, tokenizer: Fingerprint | None, *, readahead: bool = False
) -> Segment:
    """Open the segment that a manifest names; raises CorpusError also if it does not match the manifest."""
    segment = Segment(folder / entry.file, tokenizer, readahead=readahead)
    same = (len(segment), segment.size, segment.text.size) == (entry.documents, entry.size, entry.text)
    if not same or not {part.corpus for part in entry.live} <= set(segment.corpora):
        raise CorpusError.build(
            "a segment is not the one that its manifest means",
            who=str(segment.path),
            found=f"{len(segment)} documents, {segment.size} bytes",
            expected=f"{entry.documents} documents, {entry.size} bytes",
        )
    return segment


def clean(folder: Path) -> None:
    """Delete segments that no manifest names, as merged ones and those of killed writers, unless somebody builds."""
    with suppress(OSError, CorpusError):  # a manifest that cannot be read may name them
        handle = open_lock(marker := folder / BUILDING_LOCK_FILE)
        try:
            if lock(handle, marker, fcntl.LOCK_EX | fcntl.LOCK_NB):
                named = load(folder).files()
                for name in os.listdir(folder):
                    if _OWN_FILE.fullmatch(name) and name not in named:
                        (folder / name).unlink(missing_ok=True)
        finally:
            os.close(handle)


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


def _unknown_document(name: str, searched: Sequence[LiveSegment], corpus: str | None) -> SpecplugError:
    names = (
        segment.name(index)
        for segment, _ in searched
        for index in range(len(segment))
        if corpus in (None, segment.corpora[segment.corpus_of[index]])
    )
    known = (other for other in names if other != name)  # the name may be that of a removed document
    who = None if corpus is None else f"corpus {shortened(corpus)}"
    return CorpusError.build("no such document", who=who, found=shortened(name), remedy=hint(name, known))
