"""Inspection of a store: full checks of its segments, and exact counts of the tokens that follow a context."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.corpus.manifest import SegmentEntry
from specplug.corpus.segment import COMPARED, NO_TEXT, Segment
from specplug.corpus.segment_arrays import Builder, documents_of
from specplug.corpus.tenant import Tenant
from specplug.errors import CorpusError, SpecplugError

_PIECE = 1 << 17  # items checked at a time


class Problem(NamedTuple):
    """A problem with a file of the store."""

    path: str
    what: str


class Continuations(NamedTuple):
    """The tokens that follow the longest end of a context found in any document.

    Attributes:
        length: number of context tokens that match, at most `COMPARED`; 0 if not even the last one is found.
        counts: number of times that each token follows.
    """

    length: int
    counts: Counter[int]


def problems_with(tenant: Tenant, entry: SegmentEntry) -> list[Problem]:
    """Read a whole segment and return its problems; none if it was deleted meanwhile."""
    try:
        segment = tenant.checked(entry)
        broken = broken_invariants(segment, tenant.tokenizer.vocab_size)
        if not broken and SegmentEntry.of(segment) != entry:
            broken = ["not as many documents and tokens as its manifest says"]
    except SpecplugError as error:
        broken = [str(error)]
    if broken and not _is_named(tenant, entry):
        return []
    return [Problem(str(tenant.folder / entry.file), what) for what in broken]


def broken_invariants(segment: Segment, vocab_size: int) -> list[str]:
    """Return what differs from a segment that is built from the same documents.  Takes as long as building it."""
    builder = Builder()
    text = segment.text
    for at in range(0, text.size, _PIECE):
        if int(text[at : at + _PIECE].min()) < NO_TEXT or int(text[at : at + _PIECE].max()) >= vocab_size:
            return ["token ids beyond the vocabulary"]
    for document in documents_of(segment):
        if (document.texts[0] == NO_TEXT).any():
            return ["documents that are not closed"]
        if document.name.decode(errors="replace").encode() != document.name:
            return ["names that are not UTF-8"]
        builder.append(*document)
    return [
        f"another {name!r} than its documents give"
        for name, expected in builder.sections().items()
        if not np.array_equal(getattr(segment, name), expected)
    ]


def _is_named(tenant: Tenant, entry: SegmentEntry) -> bool:
    try:
        return entry.file in tenant.manifest().files()
    except CorpusError:
        return True


def continuations(segments: Iterable[Segment], context: Sequence[int], corpus: str | None = None) -> Continuations:
    """Return the tokens that follow the end of a context in all documents, or in those of one corpus.

    Re-tokenized prefixes repeat their documents, so they count only if no document's body matches as far.
    """
    best = Continuations(0, Counter())
    for segment in segments:
        found = _of_segment(segment, context, corpus)
        if found.length > best.length:
            best = found
        elif found.length == best.length:
            best.counts.update(found.counts)
    return best


def _of_segment(segment: Segment, context: Sequence[int], corpus: str | None) -> Continuations:
    last = tuple(int(token) for token in context[-COMPARED:])[::-1]
    found = Continuations(0, Counter())
    for length in range(1, len(last) + 1):
        places = _counted(segment, _places(segment, last[:length]), corpus)
        if not places.size:
            break
        found = Continuations(length, Counter(segment.text[places].tolist()))
    return found


def _places(segment: Segment, backwards: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Return the places that these tokens precede, read backwards."""

    def key(place: np.int32) -> tuple[int, ...]:
        before = segment.text[max(0, place - len(backwards)) : place][::-1].tolist()
        return tuple(before[: before.index(NO_TEXT) + 1] if NO_TEXT in before else before)

    first = bisect_left(segment.places, backwards, key=key)
    found = segment.places[first : bisect_right(segment.places, backwards, lo=first, key=key)]
    return found[(found > 0) & (found < segment.text.size)]  # a damaged file may have others


def _counted(segment: Segment, places: npt.NDArray[np.int32], corpus: str | None) -> npt.NDArray[np.int32]:
    """Return the places in documents of the corpus; only those in bodies, if there are any."""
    owners = np.searchsorted(segment.starts, places, side="right") - 1
    if corpus is not None:
        own = np.array([name == corpus for name in segment.corpora])[segment.corpus_of[owners]]
        places = places[own]
        owners = owners[own]
    bodies = places < segment.starts[owners] + segment.lengths[owners]
    return places[bodies] if bodies.any() else places
