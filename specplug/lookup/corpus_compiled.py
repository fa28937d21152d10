"""The search of corpora for CPUs: what differs from `corpus_search`, which says what each function does."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from specplug.lookup import layout as at
from specplug.lookup.corpora import COUNT
from specplug.lookup.corpus_search import LOOKED_AT, corpus_match, corpus_token, is_named, place_at
from specplug.lookup.layout import State


@register_jitable
def find_places(state: State, segment: int, scope: Any, text: Any, n: int, best: Any) -> None:
    """Write the best matches; a side is left where no better match can follow."""
    count = int(state.segments[segment, COUNT])
    point = insertion_point(state, segment, text, n)
    may_be_named = int(scope[at.NAMED_CORPORA] > 0)
    number = 0
    for side in range(2):
        for distance in range(LOOKED_AT):
            k = point + distance if side else point - 1 - distance
            if k < 0 or k >= count:
                break
            place = place_at(state, segment, k)
            length = corpus_match(state, segment, place, text, n)
            is_full = number == at.CORPUS_CANDIDATES
            if length == 0 or (is_full and 2 * length + may_be_named <= best[number - 1] >> 32):
                break
            worth = 2 * length + is_named(state, segment, scope, place)
            if is_full and worth <= best[number - 1] >> 32:
                continue
            to = number - int(is_full)
            while to > 0 and worth > best[to - 1] >> 32:
                best[to] = best[to - 1]
                to -= 1
            best[to] = (worth << 32) + place
            number += int(not is_full)


@register_jitable
def insertion_point(state: State, segment: int, text: Any, n: int) -> int:
    """Return how many places of a segment come before the text's end.

    The places just below `low` and at `high` share so many tokens with the text's end, and those in between at least
    the smaller number, which needs no comparison (U. Manber and G. Myers, 1990).
    """
    low = 0
    high = int(state.segments[segment, COUNT])
    shared_low = 0
    shared_high = 0
    while low < high:
        middle = (low + high) // 2
        place = place_at(state, segment, middle)
        shared = min(shared_low, shared_high, place - 1)  # damaged places may share less; never read before the text
        token = 0
        own = 0
        while shared < at.LONGEST:
            token = corpus_token(state, segment, place - 1 - shared)
            own = max(int(text[n - 1 - shared]), -1) if shared < n else -1
            if token != own or token < 0:
                break
            shared += 1
        if shared < at.LONGEST and token < own:
            low = middle + 1
            shared_low = shared
        else:
            high = middle
            shared_high = shared
    return low
