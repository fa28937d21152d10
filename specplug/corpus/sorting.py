"""Sorting of the places of a static text by the text before them, for the searches of `specplug.lookup`.

Place i is between tokens i - 1 and i.  Its *key* is the text before it, read backwards: token i - 1, then i - 2, up to
`cap` tokens or to a token below 0 (not text), which is smaller than any other.  So the places that match the end of
another text are adjacent, with the longest matches nearest to that text's insertion point: a suffix array of the
reversed text (U. Manber and G. Myers, 1990), cut to `cap` tokens.  It takes 4 bytes per token in addition to the text's
4.

The sort is a counting sort by last token, then one by the token before it for each group whose keys are still equal.
`plainly_sorted` of tests/corpus/test_sorting.py is the reference.

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

_FEW = 16
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

    The text is [n] int32, whose tokens below 0 are not text, as the first and the last one; keys have at most `cap`
    tokens.  Takes up to 16 bytes per token meanwhile, or 24 if ids are larger than n, and lets other threads run.
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
    if cap > 1:
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
    begin = 0
    for end in ends:
        _sort(text, places[begin:end], cap)
        begin = end


@compiled
def _sort(text: Any, places: Any, cap: int) -> None:
    """Sort ascending places whose keys agree in one token; equal keys stay in their order."""
    waiting = [(0, places.size, 1)]
    while waiting:
        low, high, depth = waiting.pop()
        group = places[low:high]
        if high - low <= _FEW:
            _insert_each(text, group, depth, cap)
            continue
        keys = np.empty(high - low, np.int64)
        differ = False
        for k in range(high - low):
            token = np.int64(text[group[k] - 1 - depth])
            keys[k] = token << 32 | k
            differ = differ or token != keys[0] >> 32
        if differ:
            keys.sort()
            before = group.copy()
            for k in range(high - low):
                group[k] = before[keys[k] & 0xFFFFFFFF]
        first = 0
        for end in range(1, high - low + 1):
            if end == high - low or keys[end] >> 32 != keys[first] >> 32:
                if end - first > 1 and keys[first] >= 0 and depth + 1 < cap:
                    waiting.append((low + first, low + end, depth + 1))
                first = end


@compiled
def _insert_each(text: Any, places: Any, depth: int, cap: int) -> None:
    for k in range(1, places.size):
        place = places[k]
        at = k
        while at > 0 and _is_below(text, place, places[at - 1], depth, cap):
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
