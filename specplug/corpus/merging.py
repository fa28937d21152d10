"""Merging of many small segments into few, without removed documents.

Segments stay in the order of their documents' age, so only neighbours are merged.  Text is sorted again, which is slow;
this happens aside, and the lock is held only at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from specplug.corpus.adding import write_segments
from specplug.corpus.building import documents_of
from specplug.corpus.manifest import Manifest, SegmentEntry
from specplug.corpus.segment import LiveSegment, check_sections
from specplug.corpus.tenant import Tenant

SEGMENTS_OF_A_SIZE = 4
"""The most adjacent segments of one size class; more are merged."""

DEAD_SHARE = 0.25
"""A segment with a larger share of removed tokens is rewritten."""

_SMALLEST = 1 << 12  # tokens; all smaller segments are in one size class
_GROWTH = 4
_TRIES = 8


class Merged(NamedTuple):
    """The result of a merge: the number of segments that were read, and of those that replace them."""

    read: int
    written: int


_Job = list[tuple[SegmentEntry, LiveSegment]]
"""Neighbouring segments to be rewritten as one or more."""


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


def choose(entries: Sequence[SegmentEntry], segment_tokens: int) -> slice | None:
    """Return the run to merge first, None if there is nothing to merge.

    A segment is rewritten if more than a quarter of its tokens are dead.  Otherwise the run is more than four adjacent
    segments up to a size class, for the smallest such class.  Size classes grow by a factor of four; segments over half
    of the limit are not merged.
    """
    for at, entry in enumerate(entries):
        if entry.tokens - entry.live_tokens > DEAD_SHARE * entry.tokens:
            return slice(at, at + 1)
    sizes = [_size(entry, segment_tokens) for entry in entries]
    for size in sorted({size for size in sizes if size < math.inf}):
        for run in _runs(sizes, size):
            if run.stop - run.start > SEGMENTS_OF_A_SIZE:
                return run
    return None


def _job(tenant: Tenant, manifest: Manifest, segment_tokens: int, whole: bool) -> _Job | None:
    """Return the next run to merge, with its segments opened; None if there is none."""
    run = (_all if whole else choose)(manifest.segments, segment_tokens)
    return None if run is None else [(entry, tenant.open(entry)) for entry in manifest.segments[run]]


def _all(entries: Sequence[SegmentEntry], segment_tokens: int) -> slice | None:
    """Return the run of all segments, None if their number cannot shrink and nothing in them is dead."""
    clean = not any(entry.live_tokens < entry.tokens for entry in entries)
    full = sum(entry.text for entry in entries) > segment_tokens * (len(entries) - 1)
    return None if clean and full else slice(0, len(entries))


def _size(entry: SegmentEntry, segment_tokens: int) -> float:
    if 2 * entry.text > segment_tokens:
        return math.inf
    return max(0, math.ceil(math.log(entry.text / _SMALLEST, _GROWTH)))


def _runs(sizes: Sequence[float], most: float) -> Iterator[slice]:
    first = None
    for at, size in enumerate([*sizes, math.inf]):
        if size <= most:
            first = at if first is None else first
        elif first is not None:
            yield slice(first, at)
            first = None


def _merged(tenant: Tenant, job: _Job, segment_tokens: int) -> Merged | None:
    """Merge one run; return None if one of its segments was deleted meanwhile because it had no live documents."""
    for _, live in job:
        check_sections(live.segment)  # a torn one must not get a new checksum
    documents = chain.from_iterable(documents_of(live) for _, live in job)
    with tenant.building() as write:
        new = write_segments(documents, write, segment_tokens)
        with tenant.alone() as manifest:
            files, old = [entry.file for entry in manifest.segments], [entry.file for entry, _ in job]
            at = files.index(old[0]) if old[0] in files else 0
            end = at + len(old)
            if files[at:end] != old:
                return None
            new = _without_removed(tenant, new, job, manifest.segments[at:end])
            tenant.commit(manifest, (*manifest.segments[:at], *new, *manifest.segments[end:]))
    return Merged(len(old), len(new))


def _without_removed(
    tenant: Tenant, new: list[SegmentEntry], job: _Job, old: Sequence[SegmentEntry]
) -> list[SegmentEntry]:
    """Return the new segments without the documents that were removed from the old ones during the merge."""
    lives = [live for _, live in job]
    now = [entry.applied_to(live.segment).mask for entry, live in zip(old, lives, strict=True)]
    removed = np.concatenate([mask[live.mask == 0] for mask, live in zip(now, lives, strict=True)])
    if not removed.any():
        return new
    masks = np.split(removed, np.cumsum([entry.documents for entry in new])[:-1])
    marked = [SegmentEntry.of(tenant.open(entry).segment, mask) for entry, mask in zip(new, masks, strict=True)]
    return [entry for entry in marked if entry.live]
