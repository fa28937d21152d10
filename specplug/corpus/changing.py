"""One change of a tenant: new segments are written aside, and replace others by one new manifest.

Segments are merged as they are added, so that there are few: the logarithmic method of J. Bentley and J. Saxe (1980)
with at most four neighbours of a size.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
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

SEGMENTS_OF_A_SIZE = 4
"""The most adjacent segments of one size class; more are merged."""

_SMALLEST = 1 << 12  # tokens; all smaller segments are in one size class
_GROWTH = 4
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
        while (run := choose(entries, self._segment_tokens)) is not None:
            try:
                segments = [Segment(self._folder / entry.file, self._tokenizer) for entry in entries[run]]
                for segment in segments:
                    check_sections(segment)
            except CorpusError:
                break  # a damaged neighbour must not keep others from being added
            entries[run] = self.added(chain.from_iterable(map(documents_of, segments)))
        return entries

    def _written(self, sections: Sections, corpora: Sequence[str]) -> SegmentEntry:
        path = self._folder / f"{self._identity}-{self._count}{SEGMENT_ENDING}"
        self._count += 1
        write_segment(path, sections, corpora, self._tokenizer)
        return SegmentEntry.of(Segment(path))


def choose(entries: Sequence[SegmentEntry], segment_tokens: int) -> slice | None:
    """Return the run to merge first, None if there is nothing to merge.

    It is more than four adjacent segments up to a size class, for the smallest such class.  Size classes grow by a
    factor of four; segments over half of the limit are not merged.
    """
    sizes = [_size(entry, segment_tokens) for entry in entries]
    for size in sorted({size for size in sizes if size < math.inf}):
        for run in _runs(sizes, size):
            if run.stop - run.start > SEGMENTS_OF_A_SIZE:
                return run
    return None


def clean(folder: Path, named: Callable[[], set[str]]) -> None:
    """Delete segments that no manifest names: merged ones, and those of killed writers.  Call with the lock held."""
    with suppress(OSError, CorpusError):  # a manifest that cannot be read may name them
        files = named()
        for name in os.listdir(folder):
            if _OWN_FILE.fullmatch(name) and name not in files:
                (folder / name).unlink(missing_ok=True)


def _size(entry: SegmentEntry, segment_tokens: int) -> float:
    if 2 * entry.text > segment_tokens:
        return math.inf
    return max(0, math.ceil(math.log(entry.text / _SMALLEST, _GROWTH)))


def _runs(sizes: Sequence[float], longest: float) -> Iterator[slice]:
    first = None
    for at, size in enumerate([*sizes, math.inf]):
        if size <= longest:
            first = at if first is None else first
        elif first is not None:
            yield slice(first, at)
            first = None
