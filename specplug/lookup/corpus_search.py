"""The reference of the search of corpora, one row at a time; see `corpora` for their memory.

`search` writes `corpus_matches`, from which `draft` reads.  The places of a segment are sorted by the text before them,
so the longest matches are next to the position of the row's text in that order.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from specplug.lookup import layout as at
from specplug.lookup.corpora import COUNT, DOCUMENTS, LENGTH, NUMBER, PLACES, TEXT
from specplug.lookup.layout import PLACE, TOKEN, Rows, State

LOOKED_AT = 64
"""Places of a segment that are examined on each side: more than candidates, so that named corpora are found."""
COPIES = 6
"""Ranks between one candidate and the next: equal passages are often copies of one text, which must not vote each."""


def search(state: State, texts: Any, rows: Rows) -> None:
    """Write each row's best matches in the segments of its tenant to `corpus_matches`."""
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        facts = state.slots[slot]
        n = int(facts[at.END])
        tenant = state.scopes[slot, at.TENANT]
        state.corpus_matches[row, :, :] = 0
        is_current = facts[at.GENERATION] == rows.generations[row]
        if is_current and rows.limits[row] > 0 and n > 0 and 0 < tenant < state.tenants.size - 1:
            first = state.tenants[tenant]
            end = n + facts[at.ENGINE]
            for rank in range(state.tenants[tenant + 1] - first):
                find_places(state, first + rank, state.scopes[slot], texts[slot], end, state.corpus_matches[row, rank])


def find_places(state: State, segment: int, scope: Any, text: Any, n: int, best: Any) -> None:
    """Write the best matches of a segment.

    The longer match wins, then that of a named corpus, then that of a place before the text's own in the order of the
    segment, then the nearer one in that order.
    """
    count = int(state.segments[segment, COUNT])
    point = sum(is_below(state, segment, place_at(state, segment, k), text, n) for k in range(count))
    before = range(point - 1, max(point - 1 - LOOKED_AT, -1), -1)
    after = range(point, min(point + LOOKED_AT, count))
    found = []
    for k in (*before, *after):
        place = place_at(state, segment, k)
        length = corpus_match(state, segment, place, text, n)
        if length:
            found.append((2 * length + is_named(state, segment, scope, place), place))
    found.sort(key=lambda it: -it[0])  # the order among equal ones stays
    for k, (worth, place) in enumerate(found[: at.CORPUS_CANDIDATES]):
        best[k] = (worth << 32) + place


@register_jitable
def corpus_token(state: State, segment: int, place: int) -> int:
    """Return the token at a place of a segment's text, at least -1."""
    return max(int(state.corpus[state.segments[segment, TEXT] + place]), -1)


@register_jitable
def place_at(state: State, segment: int, k: int) -> int:
    """Return the k-th place of a segment."""
    place = int(state.corpus[state.segments[segment, PLACES] + k])
    return min(max(place, 1), int(state.segments[segment, LENGTH]) - 1)


@register_jitable
def is_below(state: State, segment: int, place: int, text: Any, n: int) -> bool:
    """Return whether the tokens before a place come before the text's end in the order of places."""
    for k in range(at.LONGEST):
        token = corpus_token(state, segment, place - 1 - k)
        own = max(int(text[n - 1 - k]), -1) if k < n else -1
        if token != own or token < 0:
            return token < own
    return False


@register_jitable
def corpus_match(state: State, segment: int, place: int, text: Any, n: int) -> int:
    """Return how many tokens before a place match the text's end, at most up to the beginning of the place's text."""
    length = 0
    while length < min(n, at.LONGEST) and text[n - 1 - length] >= 0:
        if corpus_token(state, segment, place - 1 - length) != text[n - 1 - length]:
            break
        length += 1
    return length


@register_jitable
def is_named(state: State, segment: int, scope: Any, place: int) -> int:
    """Return 1 for a place of a corpus that the request names, 0 for one of another corpus."""
    if scope[at.NAMED_CORPORA] == 0:
        return 0
    low = state.segments[segment, DOCUMENTS]
    high = low + state.segments[segment, NUMBER]
    while high - low > 1:
        middle = (low + high) // 2
        if state.documents[middle, 0] < place:
            low = middle
        else:
            high = middle
    for k in range(at.MAX_NAMED):
        if scope[at.NAMED_CORPORA + k] == state.documents[low, 1]:
            return 1
    return 0


@register_jitable
def find_corpus_candidates(
    state: State, slot: int, matches: Any, text: Any, n: int, candidates: Any, number: int
) -> int:
    """Add a row's candidates of corpora to `number` others, update the anchor, and return the new number.

    Args:
        state, slot, text, n: see `candidates.find_candidates`.
        matches: [R, CORPUS_CANDIDATES] int64, the row's matches; of equal ones, those of earlier segments win.
        candidates: [CANDIDATES, 7] int64; the place of these candidates is that in `State.corpus`.
        number: candidates in it so far.
    """
    facts = state.slots[slot]
    engine = facts[at.ENGINE]
    tenant = state.scopes[slot, at.TENANT]
    if tenant <= 0 or tenant >= state.tenants.size - 1:
        return number
    begin = number
    before = 1 << 30
    for k in range(at.CORPUS_CANDIDATES):
        best = 0
        for index in range(matches.size):
            match = matches[index // at.CORPUS_CANDIDATES, index % at.CORPUS_CANDIDATES]
            worth = ((match >> 32) << 16) + 65535 - index
            if match and best < worth < before:
                best = worth
        if best == 0:
            break
        before = best
        index = 65535 - (best & 65535)
        match = matches[index // at.CORPUS_CANDIDATES, index % at.CORPUS_CANDIDATES]
        segment = state.tenants[tenant] + index // at.CORPUS_CANDIDATES
        place = match & 0xFFFFFFFF
        length = match >> 33
        kind = at.NAMED if match >> 32 & 1 else at.CORPUS
        candidates[number, :TOKEN] = (
            at.CORPUS_MATCH + k,
            kind,
            state.segments[segment, TEXT] + place,
            length,
            COPIES * k,
        )
        if k == 0 and length - engine >= at.FOLLOWED:
            facts[at.SEGMENT] = segment
            facts[at.SEGMENT_PLACE] = place - engine
            facts[at.PLACE_AT] = facts[at.FOLLOWED_AT] = n - engine
        number += 1
    if number > begin and candidates[begin, at.LENGTH] >= at.FOLLOWED:
        return number
    place, known = corpus_anchor(state, facts, text, n)
    if known >= 0:
        place += state.segments[facts[at.SEGMENT], TEXT]
        for k in range(begin, number):
            if candidates[k, PLACE] == place:
                return number
        candidates[number, :TOKEN] = at.CORPUS_ANCHOR, at.CORPUS_ALIGNED, place, known, 0
        number += 1
    return number


@register_jitable
def corpus_anchor(state: State, facts: Any, text: Any, n: int) -> tuple[int, int]:
    """Return the place that continues the text of a corpus that the row's text followed; see `candidates.anchor`.

    The place is in the segment's text; an anchor never crosses an end of the text that it followed.
    """
    followed = facts[at.FOLLOWED_AT]
    known = facts[at.PLACE_AT]
    if followed == 0 or n < known or n - followed >= at.FORGET:
        return 0, -1
    expected = facts[at.SEGMENT_PLACE] + n - known
    last = int(text[n - 1])
    for offset in at.OFFSETS:
        place = expected + offset
        is_reached = last >= 0 and is_followed(state, facts, place)
        if is_reached and corpus_token(state, facts[at.SEGMENT], place - 1) == last:
            if facts[at.ENGINE] == 0:
                facts[at.SEGMENT_PLACE] = place
                facts[at.PLACE_AT] = n
            return place, 1
    return expected, 0 if is_followed(state, facts, expected) else -1


@register_jitable
def is_followed(state: State, facts: Any, place: int) -> bool:
    """Return whether all tokens between the last known place and this one, both included, are of one text."""
    known = facts[at.SEGMENT_PLACE]
    length = state.segments[facts[at.SEGMENT], LENGTH]
    if place < 1 or place >= length:
        return False
    k = min(known, place)
    while k <= max(known, place) and corpus_token(state, facts[at.SEGMENT], k) >= 0:
        k += 1
    return k > max(known, place)  # type: ignore[no-any-return]
