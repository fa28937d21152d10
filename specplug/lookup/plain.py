"""The reference of the lookup, one row at a time; see `layout` for its memory, of which it takes numpy `views`.

Functions that are marked as jitable are those of the form for CPUs too, which compiles them as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from specplug.lookup import arithmetic
from specplug.lookup import layout as at
from specplug.lookup.layout import INDEX, KIND, LENGTH, PLACE, RANK, TOKEN, WEIGHT, Drafts, Rows, State


def scan(state: State, texts: Any, rows: Rows) -> None:
    """Learn from each row's new tokens, and write its best match to `matches`."""
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        n = int(rows.lengths[row])
        state.matches[row, :] = 0
        if state.slots[slot, at.GENERATION] == rows.generations[row]:
            learn(state, slot, texts[slot], n)
            if rows.limits[row] > 0 and n > 0:
                state.matches[row, 0] = best_match(texts[slot], n)


def best_match(text: Any, n: int) -> int:
    """Return the longest match of the text's end in itself, the newest of these: tokens * 2^32 + place; 0 for none."""
    found = 0
    for place in range(1, n):
        length = 0
        while length < min(place, at.LONGEST) and text[place - 1 - length] == text[n - 1 - length] >= 0:
            length += 1
        found = max(found, (length << 32) + place if length else 0)
    return found


@register_jitable
def ring_token(state: State, owner: int, place: int) -> int:
    """Return the token at a place of the ring; -1 if it is dead or another owner's, and is not read then."""
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
def candidates(state: State, slot: int, text: Any, n: int, match: int, found: Any) -> int:
    """Write a row's candidates to `found` [CANDIDATES, 7] by ascending index, keep the anchors, and return the number.

    An own match of at least `FOLLOWED` tokens, or any of responses, sets their anchor; otherwise that is a candidate.
    """
    owner = int(state.slots[slot, at.OWNER])
    anchors = state.slots[slot, at.ANCHORS :]
    number = response_candidates(state, text, n, owner, found) if owner else 0
    responses = number
    length = match >> 32
    place = match & 0xFFFFFFFF
    if length:
        found[number, :TOKEN] = at.OWN_MATCH, at.OWN, place, length, 0
        number += 1
    if length >= at.FOLLOWED:
        anchors[0], anchors[1] = place - n, n
    else:
        nearby, known = anchor(state, slot, 0, text, n, owner)
        if known >= 0 and length and abs(place - nearby) < at.WINDOW:
            found[number - 1, KIND] = at.NEAR
        if known >= 0 and (length == 0 or place != nearby):
            found[number, :TOKEN] = at.OWN_ANCHOR, at.ALIGNED, nearby, known, 0
            number += 1
    if responses:
        best = 0
        for k in range(responses):
            best = max(best, (found[k, LENGTH] << 32) + found[k, PLACE])
        anchors[2], anchors[3] = (best & 0xFFFFFFFF) - n, n
    elif owner:
        nearby, known = anchor(state, slot, 1, text, n, owner)
        if known >= 0:
            found[number, :TOKEN] = at.RESPONSE_ANCHOR, at.RESPONSE_ALIGNED, nearby, known, 0
            number += 1
    return number


@register_jitable
def response_candidates(state: State, text: Any, n: int, owner: int, found: Any) -> int:
    """Write the entries of the text's two buckets that match its end, without repetitions; return their number."""
    number = 0
    for table in range(len(at.KEYS)):
        tokens = at.KEYS[table]
        bucket = arithmetic.bucket_of(text, n, tokens, owner, state.buckets.shape[1])
        for entry in range(at.ENTRIES if bucket >= 0 else 0):
            place: Any = np.int64(state.buckets[table, bucket, entry])
            is_new = place > 0 and ring_token(state, owner, place) >= 0
            for k in range(number):
                is_new = is_new and found[k, PLACE] != place
            length = ring_match(state, text, n, owner, place) if is_new else 0
            if length >= tokens:
                found[number, :TOKEN] = table * at.ENTRIES + entry, at.RESPONSE, place, length, 0
                for k in range(number):
                    found[k if found[k, PLACE] < place else number, RANK] += 1
                number += 1
    return number


@register_jitable
def anchor(state: State, slot: int, which: int, text: Any, n: int, owner: int) -> tuple[int, int]:
    """Return where the text would be now in what it followed, and how many tokens match there; -1 for no candidate.

    It is the place after the text's last token that is nearest to the expected one, or the expected one itself.
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
            state.slots[slot, at.ANCHORS + 2 * which] = place - n
            return place, 1
    return n + shift, 0 if token_at(state, which, text, n, owner, n + shift) >= 0 else -1


@register_jitable
def token_at(state: State, which: int, text: Any, n: int, owner: int, place: int) -> int:
    """Return the token at a place of the own text (0) or of the ring (1), negative for none."""
    if which:
        return ring_token(state, owner, place)  # type: ignore[no-any-return]
    return int(text[place]) if 0 <= place < n else -1


def draft(state: State, texts: Any, rows: Rows, drafts: Drafts, vocab_size: int) -> None:
    """Draft for each row what its candidates vote for; `scan` comes before."""
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        n = int(rows.lengths[row])
        limit = min(int(rows.limits[row]), drafts.ids.shape[1])
        text = texts[slot]
        facts = state.slots[slot]
        found = state.found
        drafted = 0
        if facts[at.GENERATION] == rows.generations[row] and n > facts[at.START] and limit > 0:
            number = candidates(state, slot, text, n, int(state.matches[row, 0]), found)
            ask(state, slot, text, n, found, number, vocab_size)
            drafted = vote(state, slot, text, n, found, number, limit, vocab_size, row, drafts)
        drafts.lengths[row], drafts.ids[row, drafted:] = drafted, max(int(text[n - 1]), 0) if n else 0
        drafts.confidence[row, drafted:], drafts.sources[row, drafted:] = 0, -1


@register_jitable
def predicted(state: State, text: Any, n: int, owner: int, kind: int, place: int, k: int, vocab_size: int) -> int:
    """Return the k-th token from a candidate's place on, -1 for none.

    Own text goes on with the tokens that are drafted from it, so it repeats what lies between the place and its end.
    """
    if kind == at.RESPONSE or kind == at.RESPONSE_ALIGNED:
        token = ring_token(state, owner, place + k)
    else:
        token = int(text[place + k] if place + k < n else text[place + k % (n - place)])
    return token if 0 <= token < vocab_size else -1


@register_jitable
def ask(state: State, slot: int, text: Any, n: int, found: Any, number: int, vocab_size: int) -> None:
    """Note what each candidate predicts next, for `learn`."""
    owner = int(state.slots[slot, at.OWNER])
    state.voted[slot, 0, :] = -1
    for k in range(number):
        index = found[k, INDEX]
        kind = found[k, KIND]
        state.voted[slot, 0, index] = predicted(state, text, n, owner, kind, found[k, PLACE], 0, vocab_size)
        state.voted[slot, 1, index] = arithmetic.vote_row(kind, found[k, LENGTH])
    state.slots[slot, at.VOTED_FOR] = n


def vote(
    state: State, slot: int, text: Any, n: int, found: Any, number: int, limit: int, vocab_size: int, row: int,
    drafts: Drafts,
) -> int:  # fmt: skip
    """Draft the token with the longest expected draft, repeatedly, and return the number of drafted tokens.

    The candidates that predicted a token vote on the next one, with the square of the odds of their kind and length.
    """
    facts = state.slots[slot]
    last = int(text[n - 1])
    drafted = 0
    alive = found[:number, :WEIGHT].copy()
    owner, start, hit_rate = (int(facts[column]) for column in (at.OWNER, at.START, at.HIT_RATE))
    is_pending = facts[at.CHAIN_FOR] == n  # an earlier chain is still judged
    while drafted < limit:
        alive[:, TOKEN] = [predicted(state, text, n, owner, it[KIND], it[PLACE], drafted, vocab_size) for it in alive]
        alive = alive[alive[:, TOKEN] >= 0]
        if len(alive) == 0:
            break
        scores = dict[int, int]()
        longest = dict[int, int]()
        for _, kind, _, length, rank, token in alive.tolist():
            voice = arithmetic.weight(
                arithmetic.log_odds(*state.counts[arithmetic.vote_row(kind, length + drafted)].tolist()), rank
            )
            scores[token] = scores.get(token, 0) + voice
            longest[token] = max(longest.get(token, 0), length + drafted)
        token = max(
            scores, key=lambda it: scores[it] * (1 + arithmetic.length_class(longest[it]))
        )  # the first among ties
        alive = alive[alive[:, TOKEN] == token]
        is_response = np.isin(alive[:, KIND], (at.RESPONSE, at.RESPONSE_ALIGNED))
        own_places = alive[~is_response, PLACE]
        origins = (len(own_places) > 0) + 2 * is_response.any()
        near = (alive[:, KIND] >= at.NEAR).any()
        size, share = (
            arithmetic.length_class(longest[token]),
            arithmetic.share_class(scores[token], sum(scores.values())),
        )
        keys = arithmetic.judging_rows(token, last, owner, size, share, len(alive), hit_rate, int(origins), int(near))
        if not is_pending:
            state.chain[slot, :, drafted] = token, *keys
        drafts.ids[row, drafted] = last = token
        drafts.confidence[row, drafted] = confidence(state, *keys) / at.LEVELS
        drafts.sources[row, drafted] = own_places[0] + drafted < start if len(own_places) else 2
        drafted += 1
    if not is_pending:
        facts[at.CHAIN_FOR : at.CHAIN_END + 1] = n if drafted else 0, 0, drafted
    return drafted


@register_jitable
def confidence(state: State, evidence: int, context: int, token: int) -> int:
    """Return the level that a token is right: the mean of the log-odds, in which evidence counts twice."""
    table = state.counts
    seen = arithmetic.log_odds(int(table[evidence, 0]), int(table[evidence, 1]))
    level = min(max(arithmetic.probability(seen), 20), at.LEVELS - 20)
    after = arithmetic.log_odds_after(int(table[context, 0]), int(table[context, 1]), level)
    after += arithmetic.log_odds_after(int(table[token, 0]), int(table[token, 1]), level)
    return arithmetic.probability((2 * seen + after) >> 2)  # type: ignore[no-any-return]


@register_jitable
def learn(state: State, slot: int, text: Any, n: int) -> None:
    """Judge the newest votes, and the chain, by the tokens that followed.

    A chain is judged up to its first wrong token, over several steps if they emit fewer tokens, as if all of it had
    been verified; what is drafted meanwhile is judged by its votes alone.
    """
    facts = state.slots[slot]
    chain = state.chain[slot]
    voted = state.voted[slot]
    if 0 < facts[at.VOTED_FOR] < n:
        for index in range(at.CANDIDATES):
            if voted[0, index] >= 0:
                state.counts[voted[1, index], 0] += at.UNIT * (voted[0, index] == text[facts[at.VOTED_FOR]])
                state.counts[voted[1, index], 1] += at.UNIT
    if facts[at.VOTED_FOR] != n:
        facts[at.VOTED_FOR] = 0
    base = facts[at.CHAIN_FOR]
    place = facts[at.CHAIN_NEXT]
    end = facts[at.CHAIN_END]
    if 0 < base < n:
        hit = True
        if place == 0:
            facts[at.HIT_RATE] += ((at.LEVELS if chain[0, 0] == text[base] else 0) - facts[at.HIT_RATE]) * 51 >> 8
        while place < end and base < n and hit:
            hit = chain[0, place] == text[base]
            for kind in range(1, 4):
                state.counts[chain[kind, place], 0] += at.UNIT * hit
                state.counts[chain[kind, place], 1] += at.UNIT
            place = place + 1
            base = base + 1
        facts[at.CHAIN_FOR], facts[at.CHAIN_NEXT] = base if hit and place < end else 0, place
    elif base > n:
        facts[at.CHAIN_FOR] = 0


def remember(state: State, texts: Any, slot: int, prompt: int, begin: int, end: int, owner: int, number: int) -> None:
    """Enter the tokens from `begin` up to `end` of a row's text as a response.

    Args:
        state, texts: see `layout`.
        slot: the text's slot, which may have been freed but not used again.
        prompt: the first token that may be stored before the response.
        begin, end: places in the text; if they are too far apart, only the end is kept.
        owner: who may draft from it, above 0.
        number: the number of the owner's responses that were entered before.
    """
    if end <= begin:
        return
    capacity = state.ring.size
    base = int(state.end[0])
    entry = arithmetic.entry_of(owner, number)
    begin = max(begin, end - capacity // 4)
    first = max(prompt, begin - at.CONTEXT)
    text = texts[slot, first:end]
    length = end - first
    size = (length + 2 + at.GRANULE - 1) // at.GRANULE * at.GRANULE
    for k in range(size):
        state.ring[(base + k) & (capacity - 1)] = text[k - 1] if 0 < k <= length else -1
        state.owners[((base + k) & (capacity - 1)) // at.GRANULE] = owner
    for table in range(len(at.KEYS)):
        for k in range(begin - first, length):
            bucket = arithmetic.bucket_of(text, k, at.KEYS[table], owner, state.buckets.shape[1])
            if bucket >= 0:
                state.buckets[table, bucket, entry] = max(state.buckets[table, bucket, entry], base + 1 + k)
    state.end[0] = base + size
