"""Sorting of the places of a static text by the text before them, for the searches of `specplug.lookup`.

Place i is between tokens i - 1 and i.  Its *key* is the text before it, read backwards: token i - 1, then i - 2, up to
`cap` tokens or to a token below 0 (not text), which is smaller than any other.  So the places that match the end of
another text are adjacent, with the longest matches nearest to that text's insertion point: a suffix array of the
reversed text (U. Manber and G. Myers, 1990), cut to `cap` tokens.  It takes 4 bytes per token in addition to the text's
4.

The sort is a counting sort by last token, then a multikey quicksort (J. Bentley and R. Sedgewick, 1997) that keeps the
tokens to compare in adjacent memory.  `plainly_sorted` of tests/corpus/test_sorting.py is the reference.

Numba compiles it once, and keeps the code in `NUMBA_CACHE_DIR`, or else in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from specplug.corpus.documents import Tokens
from specplug.corpus.segment import NO_TEXT

KEY_TOKENS = 64
"""Default number of tokens of a key; longer matches count as this long."""

_FEW = 12
"""Up to this many places are sorted by insertion."""

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specplug"
_SOURCES = numba.__version__.encode() + Path(__file__).read_bytes()
FOLDER = Path(os.environ.get("NUMBA_CACHE_DIR") or _CACHE) / f"sorting-{hashlib.sha256(_SOURCES).hexdigest()[:12]}"
"""The folder of compiled code, one per version of numba and of this file."""


def compiled(function: Any) -> Any:
    """Decorate a function: its first call compiles it or loads it from the cache.  It runs without the GIL."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(FOLDER)
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = before


def sorted_places(text: Tokens, cap: int = KEY_TOKENS) -> npt.NDArray[np.int32]:
    """Return the places of a text that are between two tokens, sorted by key, then by place.

    Uses 12 bytes per token temporarily, or 24 if ids are larger than n.  Other threads can run meanwhile.

    Args:
        text: [n] int32; tokens below 0 are not text.  The first and the last token are such tokens.
        cap: the most tokens of a key.

    Returns:
        [m] int32 with m < n.
    """
    text = np.ascontiguousarray(text, np.int32)
    if text.size < 3:
        return np.zeros(0, np.int32)
    if text.min() < NO_TEXT:
        text = np.maximum(text, NO_TEXT)  # all tokens below 0 are equal
    if text.max() >= text.size:
        text = _compacted(text)
    places: npt.NDArray[np.int32]
    places, ends = _by_last_token(text, int(text.max()) + 1)
    _sort_groups(text, places, ends, cap)
    return places


def _compacted(text: Tokens) -> Tokens:
    """Return a text with its ids renumbered from 0, in order, so that tables by id are no longer than the text."""
    return (np.searchsorted(np.unique(text), text) + NO_TEXT).astype(np.int32)  # the ids include NO_TEXT, which stays


@compiled
def _by_last_token(text: Any, vocab_size: int) -> Any:
    """Return the places by last token, and the end of each token's places."""
    ends = np.zeros(vocab_size + 1, np.int64)
    for place in range(1, text.size):
        if text[place - 1] >= 0 and text[place] >= 0:
            ends[text[place - 1] + 1] += 1
    for token in range(vocab_size):
        ends[token + 1] += ends[token]
    places = np.empty(ends[vocab_size], np.int32)
    for place in range(1, text.size):
        if text[place - 1] >= 0 and text[place] >= 0:
            last = text[place - 1]
            places[ends[last]] = place
            ends[last] += 1
    return places, ends[:vocab_size]  # each token's end has moved to where the next one's begins


@compiled
def _sort_groups(text: Any, places: Any, ends: Any, cap: int) -> None:
    keys = np.empty(places.size, np.int32)
    spare = np.empty((64, 4), np.int64)
    begin = 0
    for token in range(ends.size):
        if ends[token] - begin > 1:
            spare = _sort(text, places, keys, begin, ends[token], cap, spare)
        begin = ends[token]


@compiled
def _sort(text: Any, places: Any, keys: Any, begin: int, end: int, cap: int, stack: Any) -> Any:
    """Sort places `begin` to `end`, whose keys agree in one token; return `stack`, which may have grown."""
    stack[0, 0] = begin
    stack[0, 1] = end
    stack[0, 2] = 1
    stack[0, 3] = 0
    waiting = 1
    random = np.uint64(begin + 1)
    while waiting:
        waiting -= 1
        low, high, depth, has_keys = stack[waiting]
        if depth >= cap:
            places[low:high].sort()
            continue
        if high - low <= _FEW:
            _insert_each(text, places, low, high, depth, cap)
            continue
        if not has_keys:
            for k in range(low, high):
                keys[k] = text[places[k] - 1 - depth]
        random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        pivot = _median(keys, low, high, random)
        left, right = _part(places, keys, low, high, pivot)
        if waiting + 3 > len(stack):
            larger = np.empty((2 * len(stack), 4), np.int64)
            larger[:waiting] = stack[:waiting]
            stack = larger
        if pivot < 0:
            places[left:right].sort()  # the rest of these keys is equal
        else:
            waiting = _push(stack, waiting, left, right, depth + 1, 0)
        first = (low, left)
        second = (right, high)
        if left - low < high - right:
            first, second = second, first
        waiting = _push(stack, waiting, first[0], first[1], depth, 1)  # the smaller one is done first: a short stack
        waiting = _push(stack, waiting, second[0], second[1], depth, 1)
    return stack


@compiled
def _push(stack: Any, waiting: int, low: int, high: int, depth: int, has_keys: int) -> int:
    if high - low < 2:
        return waiting
    stack[waiting, 0] = low
    stack[waiting, 1] = high
    stack[waiting, 2] = depth
    stack[waiting, 3] = has_keys
    return waiting + 1


@compiled
def _median(keys: Any, low: int, high: int, random: Any) -> int:
    size = np.uint64(high - low)
    a = keys[low + np.int64((random >> np.uint64(33)) % size)]
    b = keys[low + np.int64((random >> np.uint64(13)) % size)]
    c = keys[low + np.int64((random >> np.uint64(23)) % size)]
    return max(min(a, b), min(max(a, b), c))  # type: ignore[no-any-return]


@compiled
def _part(places: Any, keys: Any, low: int, high: int, pivot: int) -> Any:
    """Move keys below the pivot to the left and those above to the right; return the bounds of the equal ones."""
    left = low
    at = low
    right = high
    while at < right:
        key = keys[at]
        if key < pivot:
            keys[at] = keys[left]
            keys[left] = key
            places[at], places[left] = places[left], places[at]
            left += 1
            at += 1
        elif key > pivot:
            right -= 1
            keys[at] = keys[right]
            keys[right] = key
            places[at], places[right] = places[right], places[at]
        else:
            at += 1
    return left, right


@compiled
def _insert_each(text: Any, places: Any, low: int, high: int, depth: int, cap: int) -> None:
    for k in range(low + 1, high):
        place = places[k]
        at = k
        while at > low and _is_below(text, place, places[at - 1], depth, cap):
            places[at] = places[at - 1]
            at -= 1
        places[at] = place


@compiled
def _is_below(text: Any, a: int, b: int, depth: int, cap: int) -> bool:
    """Return whether place `a` comes before place `b`; their keys agree in `depth` tokens."""
    for n in range(depth, cap):
        x = text[a - 1 - n]
        y = text[b - 1 - n]
        if x != y:
            return x < y  # type: ignore[no-any-return]
        if x < 0:
            break
    return a < b
