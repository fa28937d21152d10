"""Candidates of both sources vote on which token comes next.

A vote weighs the square of the odds that such candidates were right so far: longer matches far outweigh shorter ones,
and of equal ones the newer counts a little more.
"""

from __future__ import annotations

from typing import Any

from specplug.match.compiled import compiled
from specplug.match.evidence import ALIGNED, NEAR, OWN, RESPONSE, length_class, odds, vote_key
from specplug.match.recency import owner_of, search

WINDOW, BACK = 12, 4
"""How far ahead, and back, of where the text was followed last it is looked for again when it diverges."""

FORGET_ANCHOR = 64
"""Tokens after which it is not looked for any more."""

FOLLOWED = 2
"""Matches of this length say that the text is followed there."""

_AGE = 0.05
_LENGTH_BONUS = 1.0  # a longer match promises more beyond the next token


@compiled
def said(text: Any, n: int, responses: Any, end: int, kind: int, at: int, drafted: Any) -> int:
    """Return what a candidate says at place `at` of its text, -1 for nothing; own text goes on in its draft.

    Args:
        text: [C] int32, own text, of `n` tokens.
        responses: [R] int32, the ring of responses up to place `end`.
        kind, at: of the candidate.
        drafted: [N] int32, tokens drafted so far.
    """
    if kind % 2 == OWN:
        token: int = text[at] if at < n else drafted[at - n]
    else:
        token = responses[at & (responses.size - 1)] if at < end else -1
    return token


@compiled
def token_at(state: Any, slot: int, kind: int, at: int) -> int:
    """Return what a candidate of a slot says; see `said`."""
    texts, memory = state.texts, state.memory
    return said(texts.text[slot], texts.lengths[slot], memory.text, memory.ends[0], kind, at, state.bench.drafted)


@compiled
def gather(state: Any, slot: int) -> int:
    """Put the candidates for a row's next token on the bench, row 0, and return how many there are."""
    texts, bench, shortest = state.texts, state.bench, state.shortest
    count = 0
    for k in range(texts.candidates[slot]):
        if texts.match_lengths[slot, k] >= shortest:
            count = _put(bench, 0, count, texts.places[slot, k], texts.match_lengths[slot, k], OWN)
    count = _put_responses(state, slot, 0, count, texts.text[slot], texts.lengths[slot])
    return _align(state, slot, count)


@compiled
def gather_anew(state: Any, slot: int, node: int, depth: int) -> int:
    """Put candidates for what follows `depth` drafted tokens on the bench, where no earlier candidate is left."""
    texts, bench, cap, shortest = state.texts, state.bench, state.cap, state.shortest
    n = texts.lengths[slot]
    known = min(n, cap)
    for k in range(known):
        bench.context[k] = texts.text[slot, n - known + k]
    for k in range(depth):
        bench.context[known + k] = bench.drafted[k]
    heads = texts.heads[slot, : texts.trees[slot]]
    found = search(
        texts.text[slot],
        -1,
        0,
        texts.nobody,
        heads,
        texts.children[slot],
        0,
        bench.context,
        known + depth,
        cap,
        bench.places,
        bench.lengths,
    )
    count = 0
    for k in range(found):
        if bench.lengths[k] >= shortest:
            count = _put(bench, node, count, bench.places[k], bench.lengths[k], OWN)
    return _put_responses(state, slot, node, count, bench.context, known + depth)


@compiled
def _put_responses(state: Any, slot: int, node: int, count: int, context: Any, end: int) -> int:
    """Add what responses have for the `end` tokens of `context`."""
    memory, bench, owner = state.memory, state.bench, state.rows.owners[slot]
    if owner == 0 or memory.ends[0] == 0:
        return count
    size = memory.text.size
    oldest = max(memory.ends[0] + 1 - size, 0)
    found = search(
        memory.text,
        size - 1,
        oldest,
        memory.owners,
        memory.heads,
        memory.children,
        owner,
        context,
        end,
        state.cap,
        bench.places,
        bench.lengths,
    )
    for k in range(found):
        if bench.lengths[k] >= state.shortest:
            count = _put(bench, node, count, bench.places[k], bench.lengths[k], RESPONSE)
    return count


@compiled
def _put(bench: Any, node: int, count: int, at: int, length: int, kind: int) -> int:
    bench.at[node, count], bench.length[node, count], bench.kind[node, count] = at, length, kind
    return count + 1


@compiled
def _align(state: Any, slot: int, count: int) -> int:
    """Follow a text past where it diverges: candidates near the place followed last are told apart from others.

    Where no match is long enough to say where the text is now, the newest token is looked for around the place that
    comes next there; if it is not found, that place itself is tried.
    """
    texts, memory, rows, bench = state.texts, state.memory, state.rows, state.bench
    newest = texts.text[slot, texts.lengths[slot] - 1]
    known = count
    for source in (OWN, RESPONSE):
        longest, place = 0, 0
        for k in range(known):
            if bench.kind[0, k] % 2 == source and bench.length[0, k] >= longest:
                longest, place = bench.length[0, k], bench.at[0, k]
        if longest >= FOLLOWED:
            rows.anchors[slot, source], rows.ages[slot, source] = place, 0
            continue
        place = rows.anchors[slot, source]
        stop = texts.lengths[slot] if source == OWN else memory.ends[0]
        if place == 0 or place >= stop or rows.ages[slot, source] >= FORGET_ANCHOR:
            continue
        if source == RESPONSE and (rows.owners[slot] == 0 or memory.ends[0] - place > memory.text.size // 2):
            continue
        found = _look_around(state, slot, source, place, stop, newest)
        place = abs(found)
        if not _may_read(state, slot, source, place):
            continue
        rows.anchors[slot, source] = place
        seen = False
        for k in range(known):
            if bench.kind[0, k] == source and abs(bench.at[0, k] - place) < WINDOW:
                seen = seen or bench.at[0, k] == place
                bench.kind[0, k] = source + NEAR
        if not seen and int(found > 0) >= state.shortest:
            count = _put(bench, 0, count, place, int(found > 0), source + ALIGNED)
    return count


@compiled
def _may_read(state: Any, slot: int, source: int, place: int) -> bool:
    """Whether a slot may be told the token at `place`: the text that was followed may have ended before it."""
    memory = state.memory
    return source == OWN or owner_of(memory.owners, memory.text.size - 1, place + 1) == state.rows.owners[slot]


@compiled
def _look_around(state: Any, slot: int, source: int, place: int, stop: int, newest: int) -> int:
    """Return the place behind `newest` that is nearest to `place`, ahead before back; -place where there is none."""
    if newest < 0:
        return -place
    for distance in range(WINDOW):
        ahead, back = place + distance, place - distance
        if ahead < stop and _may_read(state, slot, source, ahead):
            found = token_at(state, slot, source, ahead - 1)
            if found == newest:
                return ahead
        if 0 < distance <= BACK and back > 1 and _may_read(state, slot, source, back):
            found = token_at(state, slot, source, back - 1)
            if found == newest:
                return back
    return -place


@compiled
def vote(state: Any, slot: int, node: int, count: int) -> int:
    """Let `count` candidates of a node vote; return for how many tokens, whose figures lie on the bench."""
    texts, memory, bench, votes = state.texts, state.memory, state.bench, state.tables.votes
    text, n, responses, end = texts.text[slot], texts.lengths[slot], memory.text, memory.ends[0]  # loops want locals
    kinds, ats, lengths, drafted = bench.kind[node], bench.at[node], bench.length[node], bench.drafted
    token_of, score, longest, support = bench.token, bench.score, bench.longest, bench.support
    sources, near, origin = bench.sources, bench.near, bench.origin
    tokens, rank, before = 0, 0, -1
    for k in range(count):
        kind, at, length = kinds[k], ats[k], lengths[k]
        rank = rank + 1 if kind % 2 == before else 0
        before = kind % 2
        token = said(text, n, responses, end, kind, at, drafted)
        if token < 0:
            continue
        chance = odds(votes, vote_key(kind, length))
        weight = chance * chance
        if kind < NEAR:
            weight /= 1.0 + _AGE * rank
        t = 0
        while t < tokens and token_of[t] != token:
            t += 1
        if t == tokens:
            tokens += 1
            token_of[t], score[t], longest[t], support[t] = token, 0.0, -1, 0
            sources[t], near[t] = 0, 0
        score[t] += weight
        support[t] += 1
        sources[t] |= 1 << (kind % 2)
        near[t] |= int(kind >= NEAR)
        if length > longest[t]:
            longest[t], origin[t] = length, at
    return tokens


@compiled
def best(bench: Any, tokens: int) -> int:
    """Return which of the tokens promises the longest draft: votes, and what long matches promise beyond it."""
    found, most = 0, -1.0
    score, longest = bench.score, bench.longest
    for t in range(tokens):
        worth = score[t] * (1.0 + _LENGTH_BONUS * length_class(longest[t]))
        if worth > most:
            found, most = t, worth
    return found


@compiled
def follow(state: Any, slot: int, node: int, count: int, token: int, child: int) -> int:
    """Hand the candidates of a node that said `token` on to its child, one token further; return how many."""
    texts, memory, bench = state.texts, state.memory, state.bench
    text, n, responses, end = texts.text[slot], texts.lengths[slot], memory.text, memory.ends[0]
    kinds, ats, lengths, drafted = bench.kind[node], bench.at[node], bench.length[node], bench.drafted
    kinds_below, ats_below, lengths_below = bench.kind[child], bench.at[child], bench.length[child]
    kept = 0
    for k in range(count):
        kind, at = kinds[k], ats[k]
        if said(text, n, responses, end, kind, at, drafted) == token:
            kinds_below[kept], ats_below[kept], lengths_below[kept] = kind, at + 1, lengths[k] + 1
            kept += 1
    return kept
