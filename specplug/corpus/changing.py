"""One change of a tenant: new segments are written aside, and replace others by one new manifest.

Segments are merged as they are added, by the logarithmic method of J. Bentley and J. Saxe (1980): each is several times
as long as the next, so there are few, and a text is seldom written again.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specplug.corpus.building import Builder, NewDocument, documents_of, remaining
from specplug.corpus.manifest import Manifest, SegmentEntry, commit
from specplug.corpus.names import shortened
from specplug.corpus.sealed import torn
from specplug.corpus.segment import SEGMENT_ENDING, SEGMENT_FORMAT, Sections, Segment, check_sections, write_segment
from specplug.errors import CorpusError, describe
from specplug.text.fingerprint import Fingerprint

RATIO = 3
"""The least ratio of the lengths of two neighbours; any less, and they are merged."""

_SMALLEST = 1 << 12  # tokens; smaller segments count as this long
_OWN_FILE = re.compile(r"[0-9a-f]{16}-\d{1,9}\.(?:safetensors|tmp)")


class Change:
    """A change of one tenant by the holder of its lock; what is not committed leaves nothing.

    Attributes:
        before: the manifest that it replaces.
    """

    def __init__(self, folder: Path, before: Manifest, tokenizer: Fingerprint, segment_tokens: int) -> None:
        self.before = before
        self._folder = folder
        self._tokenizer = tokenizer
        self._segment_tokens = segment_tokens
        self._identity = secrets.token_hex(8)
        self._count = 0

    def added(self, documents: Iterable[NewDocument]) -> list[SegmentEntry]:
        """Write documents, in order, to as many segments as needed.

        Raises:
            CorpusError: a document does not fit into any segment, or a file could not be written.
        """
        entries = []
        builder = Builder()
        for document in documents:
            size = sum(map(len, document.texts)) + len(document.texts)
            if size + 1 > self._segment_tokens:
                raise CorpusError.build(
                    "a document is too large",
                    who=f"document {shortened(document.name.decode(errors='replace'))}",
                    found=f"{size} tokens with its re-tokenized prefixes",
                    expected=f"fewer than {self._segment_tokens}",
                    remedy="Split it",
                )
            if builder.size + size > self._segment_tokens:
                entries.append(self._written(builder.sections(), builder.corpora))
                builder = Builder()
            builder.append(*document)
        return [*entries, self._written(builder.sections(), builder.corpora)] if len(builder) else entries

    def kept(self, segment: Segment, kept: npt.NDArray[np.bool_]) -> list[SegmentEntry]:
        """Write a checked segment's documents `kept`, [d] bool, as a new one, if there are any; raises CorpusError."""
        if not kept.any():
            return []
        try:
            return [self._written(*remaining(segment, kept))]
        except (IndexError, ValueError) as error:  # a place or a name that leads out of the file
            raise torn(segment.path, SEGMENT_FORMAT, describe(error)) from error

    def commit(self, entries: Iterable[SegmentEntry]) -> Manifest:
        """Merge small neighbours among segments, and let these be the tenant's; return the new manifest."""
        return commit(self._folder, self.before, self._merged(list(entries)))

    def _merged(self, entries: list[SegmentEntry]) -> list[SegmentEntry]:
        """Merge neighbours as far as it goes: neither a damaged one nor a full disk keeps a change from being made."""
        damaged = set[SegmentEntry]()
        while (run := choose(entries, self._segment_tokens, damaged)) is not None:
            segments = list[Segment]()
            for entry in entries[run]:
                try:
                    segments.append(opened_entry(self._folder, entry, self._tokenizer))
                    check_sections(segments[-1])
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
        path = self._folder / f"{self._identity}-{self._count}{SEGMENT_ENDING}"
        self._count += 1
        write_segment(path, sections, corpora, self._tokenizer)
        return SegmentEntry.of(Segment(path))


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


def opened_entry(
    folder: Path, entry: SegmentEntry, tokenizer: Fingerprint | None, *, readahead: bool = False
) -> Segment:
    """Open the segment that a manifest names; raises CorpusError also if it does not match the manifest."""
    segment = Segment(folder / entry.file, tokenizer, readahead=readahead)
    same = (len(segment), segment.size, segment.text.size) == (entry.documents, entry.size, entry.text)
    if not same or {part.corpus for part in entry.parts} != set(segment.corpora):
        raise CorpusError.build(
            "a segment is not the one that its manifest means",
            who=str(segment.path),
            found=f"{len(segment)} documents, {segment.size} bytes",
            expected=f"{entry.documents} documents, {entry.size} bytes",
        )
    return segment


def clean(folder: Path, named: Callable[[], set[str]]) -> None:
    """Delete segments that no manifest names: merged ones, and those of killed writers.  Call with the lock held."""
    with suppress(OSError, CorpusError):  # a manifest that cannot be read may name them
        files = named()
        for name in os.listdir(folder):
            if _OWN_FILE.fullmatch(name) and name not in files:
                with suppress(OSError):
                    (folder / name).unlink()
