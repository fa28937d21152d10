"""The lookup for CPUs, compiled by numba: what differs from `plain` and `corpus_search`, which describe each function.

Code is cached on disk by the state of this folder: numba itself considers only a function's own file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from specplug.lookup import arithmetic, plain
from specplug.lookup import layout as at
from specplug.lookup.candidates import origin_of, owner_of, predicted_token
from specplug.lookup.corpora import COUNT
from specplug.lookup.corpus_search import LOOKED_AT, corpus_match, corpus_token, is_named, place_at
from specplug.lookup.layout import INDEX, KIND, LENGTH, PLACE, RANK, TOKEN, WEIGHT, Drafts, State
from specplug.lookup.learning import begin_draft, chain_token, confidence
from specplug.lookup.trees import grow

PIECE = 64
"""Places that are compared at once with the tokens that a longer match needs."""

_NOT_COMPILED = {"options", "owners", "proposer", "steps", "storage"}
_SOURCES = numba.__version__.encode() + b"".join(
    it.read_bytes() for it in sorted(Path(__file__).parent.glob("*.py")) if it.stem not in _NOT_COMPILED
)
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specplug"
FOLDER = Path(os.environ.get("NUMBA_CACHE_DIR") or _CACHE) / f"lookup-{hashlib.sha256(_SOURCES).hexdigest()[:12]}"


def compiled(function: Any, **replaced: Any) -> Any:
    """Return a function that its first call compiles or loads from the cache, with some of its globals replaced."""
    names = {**function.__globals__, **replaced} if replaced else function.__globals__
    own = FunctionType(function.__code__, names, function.__name__)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(FOLDER)
    try:
        # Neither allocations nor counts of references, which would take as long as the rest.
        options: Any = {"nogil": True, "cache": True, "error_model": "numpy", "_nrt": False}
        return numba.njit(**options)(own)
    finally:
        settings.CACHE_DIR = before


@compiled
def best_match(text: Any, n: int) -> int:
    """Return the best match; newer places are compared first, and older ones only where a longer match may end."""
    last = text[n - 1]
    longest = 0
    found = 0
    high = n - 1
    if last < 0:
        return 0
    while high > longest and longest < at.LONGEST and text[n - 1 - longest] >= 0:
        low = max(high - PIECE, longest)
        if _may_contain(text[low:high], text[low - longest : high - longest], last, text[n - 1 - longest]):
            for index in range(high - 1, low - 1, -1):
                if text[index] == last and index >= longest and text[index - longest] == text[n - 1 - longest] >= 0:
                    length = 1
                    while length < min(index + 1, at.LONGEST) and text[index - length] == text[n - 1 - length] >= 0:
                        length += 1
                    if length > longest:
                        longest = length
                        found = index + 1
                        if longest == at.LONGEST:
                            break
        high = low
    return (longest << 32) + found if longest else 0


@compiled
def best_matches(text: Any, n: int, found: Any) -> None:
    """Write the best matches; those after the first are found by comparing all places."""
    found[0] = best_match(text, n)
    last = text[n - 1]
    number = 1
    for place in range(1, n if found.size > 1 and found[0] else 0):
        if text[place - 1] == last and place != found[0] & 0xFFFFFFFF:
            length = 1
            while length < min(place, at.LONGEST) and text[place - 1 - length] == text[n - 1 - length] >= 0:
                length += 1
            value = (length << 32) + place
            k = number
            while k > 1 and found[k - 1] < value:
                if k < found.size:
                    found[k] = found[k - 1]
                k -= 1
            if k < found.size:
                found[k] = value
                number = min(number + 1, found.size)


@compiled
def _may_contain(ends: Any, starts: Any, last: int, needed: int) -> bool:
    """Return whether `last` is among `ends` where `needed` is among `starts`; the loop is compiled to vectors."""
    found = np.int32(0)
    for k in range(ends.size):
        found |= np.int32(ends[k] == last) & np.int32(starts[k] == needed)
    return bool(found != 0)


@compiled
def vote(
    state: State, slot: int, text: Any, n: int, candidates: Any, number: int, limit: int, vocab_size: int, row: int,
    drafts: Drafts,
) -> int:  # fmt: skip
    """Write a row's draft, and return its length."""
    facts = state.slots[slot]
    last = int(text[n - 1])
    is_pending = facts[at.CHAIN_FOR] == facts[at.END]
    begin = begin_draft(state, slot, text, row, drafts)
    drafted = begin
    survival: Any = np.int64(at.SURE)
    while drafted < limit:
        depth = drafted - begin
        number, agree = _predict(state, slot, text, n, candidates, number, depth, vocab_size)
        if number == 0:
            break
        token = candidates[0, TOKEN]
        share = len(at.SHARE_BOUNDS)  # candidates that agree are not weighed
        if not agree:
            token, share = _winner(state, candidates, number, depth)
        number, longest, origins, near, source = _unite(candidates, number, token, depth, facts[at.START])
        size = arithmetic.length_class(longest)
        owner = facts[at.OWNER]
        keys = arithmetic.judging_rows(token, last, owner, size, share, number, facts[at.HIT_RATE], origins, near)
        level = confidence(state, keys[0], keys[1], keys[2])
        survival = survival * level // at.LEVELS
        if survival < state.figures[at.LEAST]:
            break
        if not is_pending:
            chain_token(state.chain[slot], drafted, token, keys[0], keys[1], keys[2], drafted - 1)
        drafts.ids[row, drafted] = last = token
        drafts.confidence[row, drafted] = np.float32(level / at.LEVELS)
        drafts.sources[row, drafted] = source
        drafted += 1
    return drafted


@compiled
def _predict(
    state: State, slot: int, text: Any, n: int, candidates: Any, number: int, depth: int, vocab_size: int
) -> tuple[int, bool]:
    """Keep the candidates that predict a token at a depth; return their number, and whether they agree."""
    facts = state.slots[slot]
    alive = 0
    agree = True
    for k in range(number):
        owner = owner_of(facts, candidates[k, INDEX])
        token = predicted_token(state, text, n, owner, candidates[k, KIND], candidates[k, PLACE], depth, vocab_size)
        if token >= 0:
            _move(candidates, k, alive)
            candidates[alive, TOKEN] = token
            agree = agree and token == candidates[0, TOKEN]
            alive += 1
    return alive, agree


@compiled
def _unite(candidates: Any, number: int, token: int, depth: int, start: int) -> tuple[int, int, int, int, int]:
    """Keep the candidates of a token; return their number, longest match, origins, nearness, and the token's source."""
    alive = 0
    longest = 0
    origins = 0
    near = 0
    source = 3
    for k in range(number):
        if candidates[k, TOKEN] == token:
            kind = candidates[k, KIND]
            longest = max(longest, candidates[k, LENGTH] + depth)
            origin = origin_of(kind)
            if origins & 1 == 0 and origin < 4:
                source = 2 if origin == 2 else int(candidates[k, PLACE] + depth < start)
            origins |= origin
            near |= kind >= at.NEAR
            _move(candidates, k, alive)
            alive += 1
    return alive, longest, origins, near, source


@compiled
def _move(candidates: Any, k: int, to: int) -> None:
    for column in range(WEIGHT if k != to else 0):  # faster than a copy of the row
        candidates[to, column] = candidates[k, column]


@compiled
def _winner(state: State, candidates: Any, alive: int, drafted: int) -> tuple[int, int]:
    """Return the token with the longest expected draft, and the class of its share."""
    total = 0
    best = 0
    best_worth = -1
    best_score = 0
    for k in range(alive):
        row = arithmetic.vote_row(candidates[k, KIND], candidates[k, LENGTH] + drafted)
        log_odds = arithmetic.log_odds(int(state.counts[row, 0]), int(state.counts[row, 1]))
        candidates[k, WEIGHT] = arithmetic.weight(log_odds, candidates[k, RANK])
        total += candidates[k, WEIGHT]
    for k in range(alive):
        score = 0
        longest = 0
        for other in range(alive):
            if candidates[other, TOKEN] == candidates[k, TOKEN]:
                score += candidates[other, WEIGHT]
                longest = max(longest, candidates[other, LENGTH] + drafted)
        worth = score * (1 + arithmetic.length_class(longest))
        if worth > best_worth:
            best = candidates[k, TOKEN]
            best_worth = worth
            best_score = score
    return best, arithmetic.share_class(best_score, total)


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


ingest = compiled(plain.ingest)
scan = compiled(plain.scan, best_matches=best_matches)
search = compiled(plain.search, find_places=find_places)
draft = compiled(plain.draft, vote=vote, grow=compiled(grow))
append = compiled(plain.append)
remember = compiled(plain.remember)
