"""A tenant's folder, as readers and writers see it: its manifest, its segments and its documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specplug.corpus.documents import Tokens
from specplug.corpus.files import check_folder
from specplug.corpus.manifest import Manifest, SegmentEntry, load
from specplug.corpus.names import hint, shortened
from specplug.corpus.segment import Segment, check_sections
from specplug.errors import CorpusError, SpecplugError
from specplug.text.fingerprint import Fingerprint

TENANTS = "tenants"

_TRIES = 8


class CorpusInfo(NamedTuple):
    """A corpus.  `bytes`: its share of its segments' files, by tokens."""

    tenant: str
    name: str
    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of a store.

    Attributes:
        folder: its folder, which need not exist.
        tokenizer: the store's.
        name: its name; without one, it is the one that the manifest names.
        segment_tokens, lock_seconds: as of `Store`.
    """

    folder: Path
    tokenizer: Fingerprint
    name: str | None = None
    segment_tokens: int = 0
    lock_seconds: float = 0.0

    def manifest(self) -> Manifest:
        """Return its current manifest; raises CorpusError as `manifest.load` does."""
        return load(self.folder, self.name)

    def open(self, entry: SegmentEntry, *, readahead: bool = False) -> Segment:
        """Open the segment that a manifest names; raises CorpusError also if it does not match the manifest."""
        segment = Segment(self.folder / entry.file, self.tokenizer, readahead=readahead)
        same = (len(segment), segment.size, segment.text.size) == (entry.documents, entry.size, entry.text)
        if not same or {part.corpus for part in entry.parts} != set(segment.corpora):
            raise CorpusError.build(
                "a segment is not the one that its manifest means",
                who=str(segment.path),
                found=f"{len(segment)} documents, {segment.size} bytes",
                expected=f"{entry.documents} documents, {entry.size} bytes",
            )
        return segment

    def checked(self, entry: SegmentEntry) -> Segment:
        """Open a segment and read all of it, before it is written anew; raises CorpusError if it is damaged."""
        segment = self.open(entry)
        check_sections(segment)  # a torn one must not get a new checksum
        return segment

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
        for _ in range(_TRIES):
            manifest = self.manifest()
            try:
                return self._newest_document(manifest, name, corpus)
            except CorpusError:
                if self.manifest().generation == manifest.generation:
                    raise  # otherwise segments may have disappeared meanwhile, as merged ones do
        return self._newest_document(self.manifest(), name, corpus)

    def _newest_document(self, manifest: Manifest, name: str, corpus: str | None) -> Tokens:
        if corpus is not None:
            check_corpus(manifest, corpus)
        searched = []
        for entry in reversed(manifest.segments):
            if corpus is None or entry.has(corpus):
                searched.append(segment := self.open(entry))
                for index in reversed(segment.find(name, corpus)):
                    return segment.document(index)
        raise unknown_document(name, searched, corpus)


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


def unknown_document(name: str, searched: Sequence[Segment], corpus: str | None) -> SpecplugError:
    """Return the error for a document that none of the segments has."""
    known = (
        segment.name(index)
        for segment in searched
        for index in range(len(segment))
        if corpus in (None, segment.corpora[segment.corpus_of[index]])
    )
    who = None if corpus is None else f"corpus {shortened(corpus)}"
    return CorpusError.build("no such document", who=who, found=shortened(name), remedy=hint(name, known))
