"""Exact counts of the tokens after a context's longest match in stored texts.  Slow; meant for inspecting a store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.corpus.layout import COMPARED, NO_TEXT
from specplug.corpus.segment import LiveSegment, Segment


class Continuations(NamedTuple):
    """The tokens that follow the longest end of a context found in any document.

    Attributes:
        length: number of context tokens that match, at most `COMPARED`; 0 if not even the last one is found.
        counts: number of times that each token follows.
    """

    length: int
    counts: Counter[int]


def continuations(segments: Iterable[LiveSegment], context: Sequence[int]) -> Continuations:
    """Return the tokens that follow the end of a context in all live documents.

    Re-tokenized prefixes repeat their documents, so they count only if no document's body matches as far.

    Args:
        segments: the segments of one tenant.
        context: token ids.
    """
    best = Continuations(0, Counter())
    for live in segments:
        found = _of_segment(live, context)
        if found.length > best.length:
            best = found
        elif found.length == best.length:
            best.counts.update(found.counts)
    return best


def _of_segment(live: LiveSegment, context: Sequence[int]) -> Continuations:
    last = tuple(int(token) for token in context[-COMPARED:])[::-1]
    segment, found = live.segment, Continuations(0, Counter())
    for length in range(1, len(last) + 1):
        places = _counted(live, _places(segment, last[:length]))
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


def _counted(live: LiveSegment, places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the places in live documents; only those in bodies, if there are any."""
    segment = live.segment
    owners = np.searchsorted(segment.starts, places, side="right") - 1
    if live.dead is not None:
        places, owners = places[live.dead[owners] == 0], owners[live.dead[owners] == 0]
    bodies = places < segment.starts[owners] + segment.lengths[owners]
    return places[bodies] if bodies.any() else places
