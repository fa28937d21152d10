"""The plain reference of the recency tree, which finds matches by comparing all places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Key = tuple[int, ...]


class Candidate(NamedTuple):
    """An earlier place of a text: the `length` tokens before `place` equal the last tokens of a context."""

    place: int
    length: int


def key_of(text: Sequence[int], place: int, cap: int) -> Key:
    """Return the text before `place` backwards: at most `cap` tokens, up to a token that is not text (below 0)."""
    key: list[int] = []
    while len(key) < min(cap, place) and text[place - 1 - len(key)] >= 0:
        key.append(text[place - 1 - len(key)])
    return tuple(key)


def common(one: Key, other: Key) -> int:
    """Return the length of the common prefix of two keys."""
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


def is_smaller(older: Key, newer: Key) -> bool:
    """Return whether the older key is smaller: at the first difference, or if it ends there, or if both are equal."""
    n = common(older, newer)
    return n == len(older) or (n < len(newer) and older[n] < newer[n])


def candidates(text: Sequence[int], places: Iterable[int], context: Key, cap: int) -> list[Candidate]:
    """Return the candidates for the token after a context, newest first.

    A place is a candidate if its last token matches and no newer place is as near to the context on the same side.  The
    search ends at a place that matches `cap` tokens.

    Args:
        text: tokens.
        places: the places to compare, in any order.
        context: the context's key.
        cap: the most tokens of a key.
    """
    found: list[Candidate] = []
    nearest: dict[bool, Key] = {}  # on each side of the context, smaller or not
    for place in sorted(places, reverse=True):
        key = key_of(text, place, cap)
        side = is_smaller(key, context)
        if side in nearest and not _is_nearer(key, nearest[side], side, cap):
            continue
        nearest[side] = key
        n = common(key, context)
        if n:
            found.append(Candidate(place, n))
        if n == cap:
            break
    return found


def kept(found: Sequence[Candidate], most: int) -> list[Candidate]:
    """Return the `most` candidates with the longest matches, preferring the oldest among ties; newest first."""
    best = sorted(found, key=lambda candidate: (-candidate.length, candidate.place))[:most]
    return sorted(best, key=lambda candidate: -candidate.place)


def _is_nearer(older: Key, newer: Key, below: bool, cap: int) -> bool:
    """Return whether an older key is strictly between a newer one and the context; both are on the same side of it."""
    if older == newer and len(older) == cap:
        return False
    return is_smaller(older, newer) is not below


def longest(text: Sequence[int], places: Iterable[int], context: Key, cap: int) -> int:
    """Return the length of the longest match, by comparing every place; the candidates must contain it."""
    return max((common(key_of(text, place, cap), context) for place in places), default=0)
