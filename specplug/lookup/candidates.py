"""Candidates for a row's next token, from its own text, responses and siblings; the same code in both forms for CPUs.

If a text ends in tokens of the engine's draft, its candidates continue these tokens, and its anchors do not move.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from specplug.lookup import arithmetic
from specplug.lookup import layout as at
from specplug.lookup.layout import KIND, LENGTH, PLACE, RANK, TOKEN, State


@register_jitable
def ring_token(state: State, owner: int, place: int) -> int:
    """Return the token at a place of the ring; -1 without reading it if the place is dead or another owner's."""
    end = int(state.end[0])
    capacity = state.ring.size
    index = place & (capacity - 1)
    if place < 0 or place < end - capacity or place >= end or state.owners[index // at.GRANULE] != owner:
        return -1
    return int(state.ring[index])


@register_jitable
def ring_match(state: State, text: Any, n: int, owner: int, place: int) -> int:
    """Return how many tokens before a place of the ring match the text's end."""
    length = 0
    while length < min(n, at.LONGEST):
        token = ring_token(state, owner, place - 1 - length)
        if token < 0 or token != text[n - 1 - length]:
            break
        length += 1
    return length


@register_jitable
def find_candidates(state: State, slot: int, text: Any, n: int, matches: Any, candidates: Any) -> int:
    """Write a row's candidates to [CANDIDATES, 7] by ascending index, update the anchors, and return their number.

    Own matches are those of `State.matches`.  If the best match in own text, or in responses, has at least `FOLLOWED`
    tokens, it sets the anchor there; otherwise the anchor is a candidate.
    """
    facts = state.slots[slot]
    owner = int(facts[at.OWNER])
    group = int(facts[at.GROUP])
    engine = int(facts[at.ENGINE])
    anchors = facts[at.ANCHORS :]
    number = 0
    if owner:
        number = entries(state, facts, text, n, owner, 0, 0, candidates, 0, number)
        if number == 0:
            number = entries(state, facts, text, n, owner, 2, 0, candidates, 0, number)
        number = entries(state, facts, text, n, owner, 1, at.USED, candidates, 0, number)
    responses = number
    length = int(matches[0]) >> 32
    place = int(matches[0]) & 0xFFFFFFFF
    if length:
        candidates[number, :TOKEN] = at.OWN_MATCH, at.OWN, place, length, 0
        number += 1
    if length < at.FOLLOWED:
        nearby, known = anchor(state, slot, 0, text, n, owner)
        if known >= 0 and length and abs(place - nearby) < at.WINDOW:
            candidates[number - 1, KIND] = at.NEAR
        if known >= 0 and (length == 0 or place != nearby):
            candidates[number, :TOKEN] = at.OWN_ANCHOR, at.ALIGNED, nearby, known, 0
            number += 1
    elif length - engine >= at.FOLLOWED:
        anchors[0] = place - n
        anchors[1] = n - engine
    best = 0
    for k in range(responses):
        best = max(best, (candidates[k, LENGTH] << 32) + candidates[k, PLACE])
    if best >> 32 >= at.FOLLOWED:
        if (best >> 32) - engine >= at.FOLLOWED:
            anchors[2] = (best & 0xFFFFFFFF) - n
            anchors[3] = n - engine
    elif owner:
        nearby, known = anchor(state, slot, 1, text, n, owner)
        if known >= 0:
            candidates[number, :TOKEN] = at.RESPONSE_ANCHOR, at.RESPONSE_ALIGNED, nearby, known, 0
            number += 1
    if group:
        number = entries(state, facts, text, n, group, 0, at.SIBLINGS, candidates, number, number)
    index = at.OTHER_MATCHES if group else at.SIBLINGS
    for k in range(1, at.TREE_MATCHES if state.nodes.shape[0] > 0 else 1):
        if matches[k] and index < at.OTHERS_END:
            candidates[number, :TOKEN] = index, at.OWN, int(matches[k]) & 0xFFFFFFFF, int(matches[k]) >> 32, 0
            number += 1
        index += 1
    return number


@register_jitable
def entries(
    state: State, facts: Any, text: Any, n: int, owner: int, key: int, index: int, candidates: Any, begin: int,
    number: int,
) -> int:  # fmt: skip
    """Add an owner's entries of the text's bucket by a key that match its end, from `index`.

    None repeats a candidate from `begin` on, and of a group's entries none is the slot's own.
    """
    tokens = at.KEYS[key]
    table = state.buckets[min(key, 1)]
    bucket = arithmetic.bucket_of(text, n, tokens, owner, len(table))
    for used in range(at.USED if bucket >= 0 else 0):
        place: Any = np.int64(table[bucket, arithmetic.entry_of(owner, used)])
        is_own = index >= at.SIBLINGS and facts[at.SPAN] <= place < facts[at.SPAN_END]
        is_new = place > 0 and not is_own and ring_token(state, owner, place) >= 0
        for k in range(begin, number):
            is_new = is_new and candidates[k, PLACE] != place
        length = ring_match(state, text, n, owner, place) if is_new else 0
        if length >= tokens:
            candidates[number, :TOKEN] = index + used, at.RESPONSE, place, length, 0
            for k in range(begin, number):
                candidates[k if candidates[k, PLACE] < place else number, RANK] += 1
            number += 1
    return number


@register_jitable
def anchor(state: State, slot: int, which: int, text: Any, n: int, owner: int) -> tuple[int, int]:
    """Return the place that continues what the text followed, and how many tokens match there; -1 for no candidate.

    The expected place is as far on as the text.  Returned is the nearest place to it that comes after the text's last
    token, or else the expected place itself.
    """
    last = int(text[n - 1])
    shift = int(state.slots[slot, at.ANCHORS + 2 * which])
    followed = int(state.slots[slot, at.ANCHORS + 2 * which + 1])
    if followed == 0 or n < followed or n - followed >= at.FORGET:
        return 0, -1
    for offset in at.OFFSETS:
        place = n + shift + int(offset)
        is_after_last = last >= 0 and token_at(state, which, text, n, owner, place - 1) == last
        if is_after_last and token_at(state, which, text, n, owner, place) >= 0:
            if state.slots[slot, at.ENGINE] == 0:
                state.slots[slot, at.ANCHORS + 2 * which] = place - n
            return place, 1
    return n + shift, 0 if token_at(state, which, text, n, owner, n + shift) >= 0 else -1


@register_jitable
def token_at(state: State, which: int, text: Any, n: int, owner: int, place: int) -> int:
    """Return the token at a place of the own text (0) or of the ring (1), negative for none."""
    if which:
        return ring_token(state, owner, place)  # type: ignore[no-any-return]
    return int(text[place]) if 0 <= place < n else -1


@register_jitable
def keep_long_enough(state: State, candidates: Any, number: int) -> int:
    """Keep the candidates with the shortest match that is drafted from, or a longer one; return their number."""
    kept = 0
    for k in range(number):
        if candidates[k, LENGTH] >= state.figures[at.SHORTEST]:
            for column in range(TOKEN if kept < k else 0):
                candidates[kept, column] = candidates[k, column]
            kept += 1
    return kept


@register_jitable
def owner_of(facts: Any, index: int) -> int:
    """Return the owner of what a candidate follows in the ring."""
    return int(facts[at.GROUP if index >= at.SIBLINGS else at.OWNER])


@register_jitable
def origin_of(kind: int) -> int:
    """Return 1 for own text and references, 2 for responses, 4 for corpora."""
    if kind == at.RESPONSE or kind == at.RESPONSE_ALIGNED:
        return 2
    return 4 if kind == at.CORPUS or kind == at.NAMED or kind == at.CORPUS_ALIGNED else 1


@register_jitable
def predicted_token(state: State, text: Any, n: int, owner: int, kind: int, place: int, k: int, vocab_size: int) -> int:
    """Return the k-th token from a candidate's place on, -1 for none; `owner`: see `owner_of`.

    Own text goes on with the tokens that are drafted from it, so it repeats what lies between the place and its end.
    """
    origin = origin_of(kind)
    if origin == 2:
        token = ring_token(state, owner, place + k)
    elif origin == 4:
        token = int(state.corpus[place + k])  # a negative token is at the end of each text
    else:
        token = int(text[place + k] if place + k < n else text[place + k % (n - place)])
    return token if 0 <= token < vocab_size else -1
