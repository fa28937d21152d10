"""One change of a tenant: new segments are written aside, and replace others by one new manifest.

Segments are merged as they are added, by the logarithmic method of J. Bentley and J. Saxe (1980): each is several times
as long as the next, so there are few, and a text is seldom written again.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain

import numpy as np
import numpy.typing as npt

from specplug.corpus.files import check_folder, fsync_folder, locked, make_folder, os_errors_named
from specplug.corpus.manifest import Manifest, SegmentEntry, commit
from specplug.corpus.names import shortened
from specplug.corpus.sealed import torn
from specplug.corpus.segment import SEGMENT_ENDING, SEGMENT_FORMAT, Sections, Segment, write_segment
from specplug.corpus.segment_arrays import Builder, NewDocument, documents_of, remaining
from specplug.corpus.tenant import Tenant, check_corpus
from specplug.errors import CorpusError, describe

LOCK_FILE = "lock"

RATIO = 3
"""The least ratio of the lengths of two neighbours; any less, and they are merged."""

_SMALLEST = 1 << 12  # tokens; smaller segments count as this long
_OWN_FILE = re.compile(r"[0-9a-f]{16}-\d{1,9}\.(?:safetensors|tmp)")


class Change:
    """A change of one tenant by the holder of its lock; what is not committed leaves nothing.

    Attributes:
        tenant: the tenant.
        before: the manifest that it replaces.
    """

    def __init__(self, tenant: Tenant, before: Manifest) -> None:
        self.tenant = tenant
        self.before = before
        self._identity = secrets.token_hex(8)
        self._count = 0

    def added(self, documents: Iterable[NewDocument]) -> list[SegmentEntry]:
        """Write documents, in order, to as many segments as needed; one that fits into none raises CorpusError."""
        entries = []
        builder = Builder()
        limit = self.tenant.segment_tokens
        for document in documents:
            size = sum(map(len, document.texts)) + len(document.texts)
            if size + 1 > limit:
                raise CorpusError.build(
                    "a document is too large",
                    who=f"document {shortened(document.name.decode(errors='replace'))}",
                    found=f"{size} tokens with its re-tokenized prefixes",
                    expected=f"fewer than {limit}",
                    remedy="Split it",
                )
            if builder.size + size > limit:
                entries.append(self._written(builder.sections(), builder.corpora))
                builder = Builder()
            builder.append(*document)
        return [*entries, self._written(builder.sections(), builder.corpora)] if len(builder) else entries

    def without(self, gone: Mapping[SegmentEntry, npt.NDArray[np.bool_]]) -> list[SegmentEntry]:
        """Return the tenant's segments without some documents, [d] bool of each segment; they are written anew.

        One of these segments that is damaged raises CorpusError.
        """
        entries = list[SegmentEntry]()
        for entry in self.before.segments:
            if entry not in gone or not gone[entry].any():
                entries.append(entry)
                continue
            segment = self.tenant.checked(entry)
            if not gone[entry].all():
                try:
                    entries.append(self._written(*remaining(segment, ~gone[entry])))
                except (IndexError, ValueError) as error:  # a place or a name that leads out of the file
                    raise torn(segment.path, SEGMENT_FORMAT, describe(error)) from error
        return entries

    def commit(self, entries: Iterable[SegmentEntry]) -> Manifest:
        """Merge small neighbours among segments, and let these be the tenant's; return the new manifest."""
        return commit(self.tenant.folder, self.before, self._merged(list(entries)))

    def _merged(self, entries: list[SegmentEntry]) -> list[SegmentEntry]:
        """Merge neighbours as far as it goes: neither a damaged one nor a full disk keeps a change from being made."""
        damaged = set[SegmentEntry]()
        while (run := choose(entries, self.tenant.segment_tokens, damaged)) is not None:
            segments = list[Segment]()
            for entry in entries[run]:
                try:
                    segments.append(self.tenant.checked(entry))
                except CorpusError:
                    damaged.add(entry)
            if not damaged.isdisjoint(entries[run]):
                continue
            try:
                entries[run] = self.added(chain.from_iterable(map(documents_of, segments)))
            except CorpusError:
                break
        return entries

    def _written(self, sections: Sections, corpora: Sequence[str]) -> SegmentEntry:
        path = self.tenant.folder / f"{self._identity}-{self._count}{SEGMENT_ENDING}"
        self._count += 1
        write_segment(path, sections, corpora, self.tenant.tokenizer)
        return SegmentEntry.of(Segment(path))


@contextmanager
def changing(tenant: Tenant, corpus: str | None = None) -> Iterator[Change]:
    """Lock a tenant for one change: of a corpus that exists, or without one of the tenant, which is created if need be.

    A lock that takes too long to get, or an unknown corpus, raises CorpusError; then no lock is created.
    """
    folder = tenant.folder
    if corpus is not None:
        check_corpus(tenant.manifest(), corpus)
    else:
        with os_errors_named(folder):
            if not os.path.lexists(folder):
                make_folder(folder.parent)
                make_folder(folder)
                fsync_folder(folder.parent)
            check_folder(folder)
    with locked(folder / LOCK_FILE, tenant.lock_seconds):
        manifest = tenant.manifest()
        if corpus is not None:
            check_corpus(manifest, corpus)
        if not manifest.generation:
            manifest = commit(folder, manifest, ())  # it comes before the first segment
        try:
            yield Change(tenant, manifest)
        finally:
            clean(tenant)


def choose(
    entries: Sequence[SegmentEntry], segment_tokens: int, damaged: Collection[SegmentEntry] = ()
) -> slice | None:
    """Return the run of neighbours to merge next into one segment, None if there is nothing to merge.

    A segment is merged with those after it if it is at most `RATIO` times as long; those over half of the limit stay,
    and so do damaged ones.
    """
    stays = [2 * entry.text > segment_tokens or entry in damaged for entry in entries]
    for last in range(len(entries) - 1, 0, -1):
        first = last
        text = entries[last].text
        while first and not stays[first - 1] and not stays[last]:
            before = entries[first - 1].text
            if max(before, _SMALLEST) > RATIO * max(text, _SMALLEST) or before + text > segment_tokens:
                break
            first -= 1
            text += before
        if first < last:
            return slice(first, last + 1)
    return None


def clean(tenant: Tenant) -> None:
    """Delete segments that no manifest names: merged ones, and those of killed writers.  Needs the tenant's lock."""
    with suppress(OSError, CorpusError):  # a manifest that cannot be read may name them
        files = tenant.manifest().files()
        for name in os.listdir(tenant.folder):
            if _OWN_FILE.fullmatch(name) and name not in files:
                with suppress(OSError):
                    (tenant.folder / name).unlink()
