"""The plain truth about matches: what the recency tree must find, by looking at everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Key = tuple[int, ...]


class Candidate(NamedTuple):
    """An earlier place of a text: the `length` tokens before `place` equal the last tokens of a context."""

    place: int
    length: int


def key_of(text: Sequence[int], place: int, cap: int) -> Key:
    """Return the text before `place` backwards: at most `cap` tokens, up to what is no text (tokens below 0)."""
    key: list[int] = []
    while len(key) < min(cap, place) and text[place - 1 - len(key)] >= 0:
        key.append(text[place - 1 - len(key)])
    return tuple(key)


def common(one: Key, other: Key) -> int:
    """Return with how many tokens both keys begin."""
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


def is_smaller(older: Key, newer: Key) -> bool:
    """Whether the older key comes first: by the first token that differs; a key that ends there, or alike, does."""
    n = common(older, newer)
    return n == len(older) or (n < len(newer) and older[n] < newer[n])


def candidates(text: Sequence[int], places: Iterable[int], context: Key, cap: int) -> list[Candidate]:
    """Return the candidates for what follows a context, newest first.

    A place is one when its last token matches and no newer place is as near to the context on the same side.  Nothing
    is looked for behind a newer place that matches `cap` tokens.

    Args:
        text: tokens.
        places: those to look at, in any order.
        context: its key.
        cap: most tokens of a key.
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
    """Return the candidates with the longest matches, at most `most`, the oldest of equally long ones; newest first."""
    best = sorted(found, key=lambda candidate: (-candidate.length, candidate.place))[:most]
    return sorted(best, key=lambda candidate: -candidate.place)


def _is_nearer(older: Key, newer: Key, below: bool, cap: int) -> bool:
    """Whether an older key lies strictly between a newer one and the context that both lie below, or above."""
    if older == newer and len(older) == cap:
        return False
    return is_smaller(older, newer) is not below


def longest(text: Sequence[int], places: Iterable[int], context: Key, cap: int) -> int:
    """Return the length of the longest match, by comparing with every place; what the candidates must contain."""
    return max((common(key_of(text, place, cap), context) for place in places), default=0)
