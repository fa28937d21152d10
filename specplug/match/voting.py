"""Candidates of both sources vote on which token comes next.

A vote weighs the square of the odds that such candidates were right so far: longer matches far outweigh shorter ones,
and of equal ones the newer counts a little more.
"""

from __future__ import annotations

from typing import Any

from specplug.match.compiled import compiled
from specplug.match.evidence import ALIGNED, NEAR, OWN, RESPONSE, length_class, odds, vote_key
from specplug.match.recency import search

WINDOW, BACK = 12, 4
"""How far ahead, and back, of where the text was followed last it is looked for again when it diverges."""

FORGET_ANCHOR = 64
"""Tokens after which it is not looked for any more."""

FOLLOWED = 2
"""Matches of this length say that the text is followed there."""

_AGE = 0.05
_LENGTH_BONUS = 1.0  # a longer match promises more beyond the next token


@compiled
def token_at(texts: Any, memory: Any, slot: int, kind: int, at: int, drafted: Any) -> int:
    """Return what a candidate says at place `at` of its text, -1 for nothing; own text goes on in its draft."""
    if kind % 2 == OWN:
        n = texts.lengths[slot]
        return texts.text[slot, at] if at < n else drafted[at - n]
    if at >= memory.ends[0]:
        return -1
    return memory.text[at & (memory.text.size - 1)]


@compiled
def gather(texts: Any, memory: Any, rows: Any, bench: Any, slot: int, cap: int, shortest: int) -> int:
    """Put the candidates for a row's next token on the bench, row 0, and return how many there are."""
    count = 0
    for k in range(texts.candidates[slot]):
        if texts.match_lengths[slot, k] >= shortest:
            count = _put(bench, 0, count, texts.places[slot, k], texts.match_lengths[slot, k], OWN)
    n = texts.lengths[slot]
    known = min(n, cap)
    bench.context[:known] = texts.text[slot, n - known : n]
    count = _put_responses(memory, rows.owners[slot], bench, 0, count, known, cap, shortest)
    return _align(texts, memory, rows, bench, slot, count, shortest)


@compiled
def gather_anew(
    texts: Any, memory: Any, rows: Any, bench: Any, slot: int, node: int, depth: int, cap: int, shortest: int
) -> int:
    """Put candidates for what follows `depth` drafted tokens on the bench, where no earlier candidate is left."""
    n = texts.lengths[slot]
    known = min(n, cap)
    bench.context[:known] = texts.text[slot, n - known : n]
    bench.context[known : known + depth] = bench.drafted[:depth]
    heads = texts.heads[slot, : texts.trees[slot]]
    found = search(
        texts.text[slot], -1, 0, texts.nobody, heads, texts.children[slot], 0, bench.context, known + depth, cap,
        bench.places, bench.lengths,
    )
    count = 0
    for k in range(found):
        if bench.lengths[k] >= shortest:
            count = _put(bench, node, count, bench.places[k], bench.lengths[k], OWN)
    return _put_responses(memory, rows.owners[slot], bench, node, count, known + depth, cap, shortest)


@compiled
def _put_responses(
    memory: Any, owner: int, bench: Any, node: int, count: int, end: int, cap: int, shortest: int
) -> int:
    if owner == 0 or memory.ends[0] == 0:
        return count
    size = memory.text.size
    oldest = max(memory.ends[0] + 1 - size, 0)
    found = search(
        memory.text, size - 1, oldest, memory.owners, memory.heads, memory.children, owner, bench.context, end, cap,
        bench.places, bench.lengths,
    )
    for k in range(found):
        if bench.lengths[k] >= shortest:
            count = _put(bench, node, count, bench.places[k], bench.lengths[k], RESPONSE)
    return count


@compiled
def _put(bench: Any, node: int, count: int, at: int, length: int, kind: int) -> int:
    bench.at[node, count], bench.length[node, count], bench.kind[node, count] = at, length, kind
    return count + 1


@compiled
def _align(texts: Any, memory: Any, rows: Any, bench: Any, slot: int, count: int, shortest: int) -> int:
    """Follow a text past where it diverges: candidates near the place followed last are told apart from others.

    Where no match is long enough to say where the text is now, the newest token is looked for around the place that
    comes next there; if it is not found, that place itself is tried.
    """
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
        found = _look_around(texts, memory, bench, slot, source, place, stop, newest)
        place = abs(found)
        rows.anchors[slot, source] = place
        seen = False
        for k in range(known):
            if bench.kind[0, k] == source and abs(bench.at[0, k] - place) < WINDOW:
                seen = seen or bench.at[0, k] == place
                bench.kind[0, k] = source + NEAR
        if not seen and int(found > 0) >= shortest:
            count = _put(bench, 0, count, place, int(found > 0), source + ALIGNED)
    return count


@compiled
def _look_around(
    texts: Any, memory: Any, bench: Any, slot: int, source: int, place: int, stop: int, newest: int
) -> int:
    """Return the place behind `newest` that is nearest to `place`, ahead before back; -place where there is none."""
    for distance in range(WINDOW):
        if place + distance < stop:
            if token_at(texts, memory, slot, source, place + distance - 1, bench.drafted) == newest:
                return place + distance
        if 0 < distance <= BACK and place - distance > 1:
            if token_at(texts, memory, slot, source, place - distance - 1, bench.drafted) == newest:
                return place - distance
    return -place


@compiled
def vote(texts: Any, memory: Any, tables: Any, bench: Any, slot: int, node: int, count: int) -> int:
    """Let `count` candidates of a node vote; return for how many tokens, whose figures lie on the bench."""
    tokens, rank, before = 0, 0, -1
    for k in range(count):
        kind, at, length = bench.kind[node, k], bench.at[node, k], bench.length[node, k]
        rank = rank + 1 if kind % 2 == before else 0
        before = kind % 2
        token = token_at(texts, memory, slot, kind, at, bench.drafted)
        if token < 0:
            continue
        chance = odds(tables.votes, vote_key(kind, length))
        weight = chance * chance
        if kind < NEAR:
            weight /= 1.0 + _AGE * rank
        t = 0
        while t < tokens and bench.token[t] != token:
            t += 1
        if t == tokens:
            tokens += 1
            bench.token[t], bench.score[t], bench.longest[t], bench.support[t] = token, 0.0, -1, 0
            bench.sources[t], bench.near[t] = 0, 0
        bench.score[t] += weight
        bench.support[t] += 1
        bench.sources[t] |= 1 << (kind % 2)
        bench.near[t] |= int(kind >= NEAR)
        if length > bench.longest[t]:
            bench.longest[t], bench.origin[t] = length, at
    return tokens


@compiled
def best(bench: Any, tokens: int) -> int:
    """Return which of the tokens promises the longest draft: votes, and what long matches promise beyond it."""
    found, most = 0, -1.0
    for t in range(tokens):
        worth = bench.score[t] * (1.0 + _LENGTH_BONUS * length_class(bench.longest[t]))
        if worth > most:
            found, most = t, worth
    return found


@compiled
def follow(texts: Any, memory: Any, bench: Any, slot: int, node: int, count: int, token: int, child: int) -> int:
    """Hand the candidates of a node that said `token` on to its child, one token further; return how many."""
    kept = 0
    for k in range(count):
        kind, at = bench.kind[node, k], bench.at[node, k]
        if token_at(texts, memory, slot, kind, at, bench.drafted) == token:
            kept = _put(bench, child, kept, at + 1, bench.length[node, k] + 1, kind)
    return kept
