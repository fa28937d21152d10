"""The reference of `CorpusIndex` in plain Python: sorts all places of a segment, and finds those around a context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from specplug.match.cpu.corpus_index import IndexSegment
from specplug.match.cpu.searching import MOST_LOOKED_AT
from specplug.match.cpu.texts import MOST_CANDIDATES, NO_TEXT
from tests.match.reference.recency import Key, common, key_of

_APART = 1 << 32


class Found(NamedTuple):
    """A place of the corpus index: the `length` tokens before it equal the last tokens of a context."""

    at: int
    length: int
    named: bool


def sorted_places(text: Sequence[int], cap: int) -> list[int]:
    """Return the expected result of `specplug.match.cpu.sorting.sorted_places`."""
    places = [place for place in range(1, len(text)) if text[place - 1] >= 0 and text[place] >= 0]
    return sorted(places, key=lambda place: (_ended(key_of(text, place, cap), cap), place))


def _ended(key: Key, cap: int) -> Key:
    """Append an end marker to a key, which is smaller than any token."""
    return key if len(key) == cap else (*key, NO_TEXT)


class ReferenceCorpusIndex:
    """See `CorpusIndex`.  Segments are numbered; place p of segment k is called k * 2^32 + p."""

    def __init__(self, tenants: Mapping[str, Sequence[IndexSegment]], key_tokens: int) -> None:
        self._segments: list[IndexSegment] = []
        self._texts: list[list[int]] = []
        self._places: list[list[int]] = []
        self._of: dict[str, list[int]] = {}
        for tenant, segments in tenants.items():
            for segment in segments:
                self._of.setdefault(tenant, []).append(len(self._segments))
                self._segments.append(segment)
                self._texts.append(segment.text.tolist())
                self._places.append(sorted_places(self._texts[-1], key_tokens))

    def token(self, at: int) -> int:
        """Return the token at a place."""
        return self._texts[at // _APART][at % _APART]

    def bounds(self, at: int) -> tuple[int, int]:
        """Return the bounds of the document that contains the token before a place."""
        number, place = divmod(at, _APART)
        starts = self._segments[number].starts.tolist()
        document = max(k for k in range(len(starts) - 1) if starts[k] <= place - 1 or k == 0)
        return number * _APART + starts[document], number * _APART + starts[document + 1]

    def nearest(self, tenant: str | None, named: Collection[str], context: Key, cap: int) -> list[Found]:
        """Return a tenant's places that match a context best, at most `MOST_CANDIDATES`.

        Args:
            named: names of corpora whose places come before others that match as well.
            context: its key, of at most `cap` tokens.
        """
        found: list[Found] = []
        for number in self._of.get("" if tenant is None else tenant, ()) if tenant is not None and context else ():
            found = self._with_segment(found, number, named, context, cap)
        return found

    def _with_segment(
        self, found: list[Found], number: int, named: Collection[str], context: Key, cap: int
    ) -> list[Found]:
        text, places = self._texts[number], self._places[number]
        keys = [key_of(text, place, cap) for place in places]
        right = sum(_ended(key, cap) < _ended(context, cap) for key in keys)
        left = [(common(keys[k], context), places[k]) for k in range(right - 1, -1, -1)]
        rest = [(common(keys[k], context), places[k]) for k in range(right, len(keys))]
        for _ in range(MOST_LOOKED_AT):
            side = left if (left[0][0] if left else 0) >= (rest[0][0] if rest else 0) else rest
            if not side or side[0][0] == 0:
                break
            length, place = side.pop(0)
            if len(found) == MOST_CANDIDATES and length < found[-1].length:
                break
            is_named = self._named_if_live(number, place, named)
            if is_named is not None:
                worse = [it for it in found if (it.length, it.named) < (length, is_named)]
                better = found[: len(found) - len(worse)]
                found = [*better, Found(number * _APART + place, length, is_named), *worse][:MOST_CANDIDATES]
        return found

    def _named_if_live(self, number: int, place: int, named: Collection[str]) -> bool | None:
        """Return whether a place is of a named corpus; None if its document is dead."""
        segment, starts = self._segments[number], self._segments[number].starts.tolist()
        document = max(k for k in range(len(starts) - 1) if starts[k] <= place - 1 or k == 0)
        if segment.dead is not None and segment.dead[document]:
            return None
        return segment.corpora[int(segment.corpus_of[document])] in named
