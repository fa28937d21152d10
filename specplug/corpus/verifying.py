"""Full checks of a segment: its checksums, and the invariants of its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.corpus.layout import COMPARED, NO_TEXT, SECTIONS
from specplug.corpus.names import name_hash
from specplug.corpus.segment import Segment
from specplug.corpus.writing import checksum, yield_gil
from specplug.errors import CorpusError

_PIECE = 1 << 17  # items checked at a time


def check_sections(segment: Segment) -> None:
    """Compare all checksums.

    Raises:
        CorpusError: the file has changed since it was written.
    """
    for name in SECTIONS:
        if checksum(getattr(segment, name)) != segment.checksums[name]:
            raise CorpusError.build(
                "a segment was altered since it was written",
                who=str(segment.path),
                found=f"another checksum of {name!r}",
                remedy="Remove its corpora and add them anew, or restore the file",
            )


def broken_invariants(segment: Segment, vocab_size: int) -> list[str]:
    """Return the violated invariants of `layout.SECTIONS`, beyond those that opening a segment checks.

    Args:
        segment: the segment, which is read as a whole, in pieces.
        vocab_size: ids must be below this.
    """
    checks: dict[str, Callable[[Segment], bool]] = {
        "token ids beyond the vocabulary": lambda s: all(
            int(piece.min()) >= NO_TEXT and int(piece.max()) < vocab_size for piece in _cut(s.text)
        ),
        "documents that are not closed": _documents_hold,
        "names that are not found": _names_hold,
        "places that are missing, out of range, or out of order": _places_hold,
    }
    return [what for what, holds in checks.items() if not holds(segment)]


def _documents_hold(segment: Segment) -> bool:
    starts, lengths, text = segment.starts, segment.lengths, segment.text
    ends = starts[:-1] + lengths
    if (text[ends] != NO_TEXT).any() or (text[starts[1:] - 1] != NO_TEXT).any():
        return False
    barriers = sum(int((piece == NO_TEXT).sum()) for piece in _cut(text))
    inside = np.diff(np.searchsorted(np.flatnonzero(text == NO_TEXT), np.stack([starts[:-1], ends], 1)), axis=1)
    return barriers > len(lengths) and not inside.any()


def _names_hold(segment: Segment) -> bool:
    order = segment.name_order
    if (np.sort(order) != np.arange(len(segment))).any():
        return False
    for at, (wanted, index) in enumerate(zip(segment.name_hashes, order, strict=True)):
        name = segment.name_bytes(index)
        if name_hash(name) != wanted or name.decode(errors="replace").encode() != name:
            return False
        if at and (segment.name_hashes[at - 1], order[at - 1]) >= (wanted, index):
            return False
        if not at % 256:
            yield_gil()
    return True


def _places_hold(segment: Segment) -> bool:
    text, places = segment.text, segment.places
    wanted = sum(
        int(((text[at : at + _PIECE][:-1] >= 0) & (text[at : at + _PIECE][1:] >= 0)).sum())
        for at in range(0, text.size, _PIECE - 1)
    )
    if wanted != places.size:
        return False
    for piece in _cut(places):
        if int(piece.min()) < 1 or int(piece.max()) >= text.size:
            return False
        if (text[piece] < 0).any() or (text[piece - 1] < 0).any():
            return False
    return all(_in_order(text, places[at : at + _PIECE]) for at in range(0, places.size, _PIECE - 1))


def _in_order(text: npt.NDArray[np.int32], places: npt.NDArray[np.int32]) -> bool:
    """Return whether the places are in order."""
    before, after = places[:-1], places[1:]
    for back in range(1, COMPARED + 1):
        left, right = text[before - back], text[after - back]
        if (left > right).any():
            return False
        alike = left == right
        if (alike & (left < 0) & (before >= after)).any():
            return False
        on = alike & (left >= 0)
        before, after = before[on], after[on]
        if not before.size:
            return True
    return bool((before < after).all())


def _cut(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for at in range(0, array.size, _PIECE):
        yield array[at : at + _PIECE]
