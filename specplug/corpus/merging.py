"""Merging of many small segments into few, without removed documents.

Segments stay in the order of their documents' age, so only neighbours are merged.  Text is sorted again, which is slow;
this happens aside, and the lock is held only at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specplug.corpus.adding import Item, write_segments
from specplug.corpus.layout import DEAD_SHARE, SEGMENTS_OF_A_SIZE
from specplug.corpus.locking import Building
from specplug.corpus.manifest import Entry, Manifest, Mask
from specplug.corpus.segment import Segment
from specplug.corpus.status import Merged
from specplug.corpus.tenant import Tenant
from specplug.corpus.verifying import check_sections

_SMALLEST = 1 << 12  # tokens; all smaller segments are in one size class
_GROWTH = 4
_TRIES = 8


class Run(NamedTuple):
    """Neighbouring segments, `entries[first:end]`, to be rewritten as one or more."""

    first: int
    end: int


class _Job(NamedTuple):
    entries: Sequence[Entry]
    segments: Sequence[Segment]
    dead: Sequence[Mask | None]


def merge(tenant: Tenant, segment_tokens: int, *, whole: bool) -> Merged:
    """Merge a tenant's segments until nothing is left to merge; see `Store.merge`."""
    read = written = lost = 0
    if not tenant.manifest().generation:
        return Merged(0, 0)
    with tenant.merging():
        while (job := tenant.reading(lambda manifest: _job(tenant, manifest, segment_tokens, whole))) is not None:
            one = _merged(tenant, job, segment_tokens)
            if one is not None:
                read, written = read + one.read, written + one.written
            lost += one is None
            if lost == _TRIES or (whole and one is not None):
                break
    return Merged(read, written)


def choose(entries: Sequence[Entry], segment_tokens: int) -> Run | None:
    """Return the run to merge first, None if there is nothing to merge.

    A segment is rewritten if more than a quarter of its tokens are dead.  Otherwise the run is more than four adjacent
    segments up to a size class, for the smallest such class.  Size classes grow by a factor of four; segments over half
    of the limit are not merged.
    """
    for at, entry in enumerate(entries):
        if entry.tokens - entry.live_tokens > DEAD_SHARE * entry.tokens:
            return Run(at, at + 1)
    sizes = [_size(entry, segment_tokens) for entry in entries]
    for size in sorted({size for size in sizes if size < math.inf}):
        for run in _runs(sizes, size):
            if run.end - run.first > SEGMENTS_OF_A_SIZE:
                return run
    return None


def _job(tenant: Tenant, manifest: Manifest, segment_tokens: int, whole: bool) -> _Job | None:
    """Return the next run to merge, with its segments opened; None if there is none."""
    run = _all(manifest.entries, segment_tokens) if whole else choose(manifest.entries, segment_tokens)
    if run is None:
        return None
    entries = manifest.entries[run.first : run.end]
    segments = [tenant.segment(entry) for entry in entries]
    dead = [entry.dead(s.corpora, s.corpus_of) for entry, s in zip(entries, segments, strict=True)]
    return _Job(entries, segments, dead)


def _all(entries: Sequence[Entry], segment_tokens: int) -> Run | None:
    """Return the run of all segments, None if their number cannot shrink and nothing in them is dead."""
    clean = not any(entry.live_tokens < entry.tokens for entry in entries)
    full = sum(entry.text for entry in entries) > segment_tokens * (len(entries) - 1)
    return None if clean and full else Run(0, len(entries))


def _size(entry: Entry, segment_tokens: int) -> float:
    if 2 * entry.text > segment_tokens:
        return math.inf
    return max(0, math.ceil(math.log(max(entry.text, 1) / _SMALLEST, _GROWTH)))


def _runs(sizes: Sequence[float], most: float) -> Iterator[Run]:
    first = None
    for at, size in enumerate([*sizes, math.inf]):
        if size <= most:
            first = at if first is None else first
        elif first is not None:
            yield Run(first, at)
            first = None


def _merged(tenant: Tenant, job: _Job, segment_tokens: int) -> Merged | None:
    """Merge one run; return None if one of its segments was deleted meanwhile because it had no live documents."""
    for segment in job.segments:
        check_sections(segment)  # a torn one must not get a new checksum
    with Building(tenant.folder) as building:
        new = write_segments(_items(job), building, tenant.tokenizer, segment_tokens)
        with tenant.alone() as manifest:
            files = [entry.file for entry in manifest.entries]
            old = [entry.file for entry in job.entries]
            at = files.index(old[0]) if old[0] in files else 0
            end = at + len(old)
            if files[at:end] != old:
                return None
            new = _marked(tenant, new, _removed_since(job, manifest.entries[at:end]))
            tenant.commit(manifest, (*manifest.entries[:at], *new, *manifest.entries[end:]))
    return Merged(len(old), len(new))


def _items(job: _Job) -> Iterator[Item]:
    """Yield all live documents in order."""
    for segment, dead in zip(job.segments, job.dead, strict=True):
        for index in range(len(segment)):
            if dead is None or not dead[index]:
                body = segment.document(index)
                after = segment.text[segment.starts[index] + len(body) + 1 : segment.starts[index + 1] - 1]
                texts = [body, after] if len(after) else [body]  # all prefixes at once: barriers are between them
                yield Item(segment.corpora[segment.corpus_of[index]], segment.name_bytes(index), texts)


def _removed_since(job: _Job, entries: Sequence[Entry]) -> Mask:
    """Return, for each document of `_items`, whether it was removed during the merge."""
    marks = []
    for segment, before, entry in zip(job.segments, job.dead, entries, strict=True):
        now = entry.dead(segment.corpora, segment.corpus_of)
        now = np.zeros(len(segment), np.uint8) if now is None else now
        marks.append(now if before is None else now[before == 0])
    return np.concatenate(marks)


def _marked(tenant: Tenant, entries: Sequence[Entry], dead: Mask) -> list[Entry]:
    """Return the new segments with removed documents marked, without segments that have no live documents."""
    if not dead.any():
        return list(entries)
    marked = []
    for entry, mask in zip(entries, np.split(dead, np.cumsum([e.documents for e in entries])[:-1]), strict=True):
        new = tenant.segment(entry)
        marked.append(entry.without(mask, new.corpora, new.corpus_of, new.lengths))
    return [entry for entry in marked if entry.live]
