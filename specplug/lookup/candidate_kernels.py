"""Candidates in kernels; `candidates` and `learning` say what each function does.

A thread per candidate; what the candidates of a warp agree on is found by comparing all pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup import counts as of
from specplug.lookup import layout as at
from specplug.lookup.corpus_kernels import find_corpus_candidates
from specplug.lookup.kernel_arithmetic import (
    LONG_KEY,
    SHORT_KEY,
    SHORTEST_KEY,
    bucket_of,
    flags,
    larger,
    length_class,
    origins_of,
    plus,
    smaller,
)
from specplug.lookup.memory_kernels import ring_match, ring_token


@triton.jit
def find_candidates(facts, own, memory, best, others, buckets):
    """Return place, length, kind, rank, owner and presence of the candidates, [CANDIDATES], and update the anchors.

    `best` is the best own match, and `others` [CANDIDATES] are the next best ones, at their candidates' indices.
    """
    engine = own[3]
    owner = tl.load(facts + at.OWNER)
    each = tl.arange(0, at.CANDIDATES)
    places, lengths, owners, is_entry = entries(facts, own, memory, buckets)
    is_newer = is_entry[None, :] & (owners[None, :] == owners[:, None]) & (places[None, :] > places[:, None])
    ranks = tl.where(is_entry, tl.reduce(is_newer.to(tl.int32), 1, plus), 0)
    is_response = is_entry & (each < at.TABLE_CANDIDATES)
    best_response = tl.reduce(tl.where(is_response, (lengths.to(tl.int64) << 32) + places, 0), 0, larger)
    length = (best >> 32).to(tl.int32)
    place = (best & 0xFFFFFFFF).to(tl.int32)
    answered = (best_response >> 32).to(tl.int32)
    follows = length - engine >= at.FOLLOWED
    nearby, known = anchor(facts, 0, own, memory, owner, length >= at.FOLLOWED, follows, place)
    follows = answered - engine >= at.FOLLOWED
    answer = (best_response & 0xFFFFFFFF).to(tl.int32)
    distant, reached = anchor(facts, 1, own, memory, owner, answered >= at.FOLLOWED, follows, answer)
    is_near = (known >= 0) & (nearby - place < at.WINDOW) & (place - nearby < at.WINDOW)
    kinds = tl.where(each == at.OWN_MATCH, tl.where(is_near, at.NEAR, at.OWN), at.RESPONSE)
    kinds = tl.where(
        each == at.OWN_ANCHOR, at.ALIGNED, tl.where(each == at.RESPONSE_ANCHOR, at.RESPONSE_ALIGNED, kinds)
    )
    places = tl.where(each == at.OWN_MATCH, place, tl.where(each == at.OWN_ANCHOR, nearby, places))
    places = tl.where(each == at.RESPONSE_ANCHOR, distant, places)
    lengths = tl.where(each == at.OWN_MATCH, length, tl.where(each == at.OWN_ANCHOR, known, lengths))
    lengths = tl.where(each == at.RESPONSE_ANCHOR, reached, lengths)
    is_there = is_entry | ((each == at.OWN_MATCH) & (length > 0)) | ((each == at.RESPONSE_ANCHOR) & (reached >= 0))
    is_there = is_there | ((each == at.OWN_ANCHOR) & (known >= 0) & ((length == 0) | (nearby != place)))
    is_other = others > 0
    places = tl.where(is_other, (others & 0xFFFFFFFF).to(tl.int32), places)
    lengths = tl.where(is_other, (others >> 32).to(tl.int32), lengths)
    kinds = tl.where(is_other, at.OWN, kinds)
    return places, lengths, kinds, ranks, owners, flags(is_there | is_other)


@triton.jit
def entries(facts, own, memory, buckets):
    """Return the entries of the owner in two buckets, and of the group in one, that match and are no repetitions."""
    text = own[0]
    n = own[1]
    each = tl.arange(0, at.CANDIDATES)
    quarter = memory[2] // 4
    group = tl.load(facts + at.GROUP)
    is_sibling = (each >= at.SIBLINGS) & (each < at.OTHER_MATCHES)
    owners = tl.where(each >= at.SIBLINGS, group, tl.load(facts + at.OWNER))
    is_long = (each < at.USED) | is_sibling
    long = bucket_of(text, n, owners, quarter, LONG_KEY)
    short = bucket_of(text, n, owners, quarter, SHORT_KEY)
    bucket = tl.where(is_long, long, short)
    key = tl.where(is_long, LONG_KEY, SHORT_KEY)
    number = each - tl.where(is_sibling, at.SIBLINGS, tl.where(is_long, 0, at.USED))
    entry = (owners * at.SPARED + number) & (at.ENTRIES - 1)
    mask = flags((is_sibling | (each < at.TABLE_CANDIDATES)) & (owners > 0) & (bucket >= 0))
    places = tl.load(buckets + (bucket + tl.where(is_long, 0, quarter)) * at.ENTRIES + entry, mask=mask, other=0)
    is_own = is_sibling & (places >= tl.load(facts + at.SPAN)) & (places < tl.load(facts + at.SPAN_END))
    mask = mask & (places > 0) & (is_own == 0)
    mask = mask & (ring_token(memory, owners, places, mask) >= 0)
    lengths = ring_match(memory, owners, text, n, places, mask)
    mask = mask & (lengths >= key)
    is_first = each < at.USED
    if tl.reduce((mask & is_first).to(tl.int32), 0, larger) == 0:
        bucket = bucket_of(text, n, owners, quarter, SHORTEST_KEY)
        is_there = flags(is_first & (owners > 0) & (bucket >= 0))
        found = tl.load(buckets + (bucket + quarter) * at.ENTRIES + entry, mask=is_there, other=0)
        is_there = is_there & (found > 0)
        is_there = is_there & (ring_token(memory, owners, found, is_there) >= 0)
        reached = ring_match(memory, owners, text, n, found, is_there)
        places = tl.where(is_first, found, places)
        lengths = tl.where(is_first, reached, lengths)
        mask = mask | (is_there & (reached >= SHORTEST_KEY))
    is_same = mask[None, :] & (places[:, None] == places[None, :]) & (each[None, :] < each[:, None])
    return places, lengths, owners, mask & (tl.reduce(is_same.to(tl.int32), 1, larger) == 0)


@triton.jit
def anchor(facts, WHICH: tl.constexpr, own, memory, owner, is_matched, follows, place):
    """Return the anchor's place and length, -1 for no candidate; a place that the text `follows` becomes the anchor."""
    text, n, last, engine = own
    shift = tl.load(facts + at.ANCHORS + 2 * WHICH)
    followed = tl.load(facts + at.ANCHORS + 2 * WHICH + 1)
    is_known = (followed > 0) & (followed <= n) & (n - followed < at.FORGET) & (is_matched == 0)
    order = tl.arange(0, 16)
    offsets = tl.where(order % 2 == 1, (order + 1) // 2, -(order // 2))
    nearby = n + shift + tl.where(order <= 2 * at.BACK, offsets, order - at.BACK)
    if WHICH == 0:
        before = tl.load(text + nearby - 1, mask=flags(is_known & (nearby > 0) & (nearby <= n)), other=-1)
        there = tl.load(text + nearby, mask=flags(is_known & (nearby >= 0) & (nearby < n)), other=-1)
    else:
        is_known = is_known & (owner > 0)
        before = ring_token(memory, owner, nearby - 1, is_known)
        there = ring_token(memory, owner, nearby, is_known)
    first = tl.reduce(tl.where((before >= 0) & (before == last) & (there >= 0), order, 16), 0, smaller)
    expected = tl.reduce(tl.where(order == 0, there, -1), 0, larger)
    found = tl.where(first < 16, tl.reduce(tl.where(order == first, nearby, 0), 0, plus), n + shift)
    tl.debug_barrier()
    is_moved = follows | ((first < 16) & (engine == 0))
    tl.store(facts + at.ANCHORS + 2 * WHICH, tl.where(follows, place, found) - n, mask=is_moved)
    tl.store(facts + at.ANCHORS + 2 * WHICH + 1, n - engine, mask=follows)
    return found, tl.where(first < 16, 1, tl.where(expected >= 0, 0, -1))


@triton.jit
def gather(facts, own, memory, voted, buckets, matches, blocks, kept, served, figures, vocab_size):
    """Return a row's candidates, of which `kept` are own matches, and store what each predicts next."""
    each = tl.arange(0, at.CANDIDATES)
    best = next_match(matches, blocks * kept, tl.full([], 1 << 62, tl.int64))
    others = each.to(tl.int64) * 0
    last = best
    index = tl.where(tl.load(facts + at.GROUP) > 0, at.OTHER_MATCHES, at.SIBLINGS) - 1
    for k in range(1, kept):
        last = next_match(matches, blocks * kept, last)
        others = tl.where((each == index + k) & (each < at.OTHERS_END), last, others)
    candidates = find_candidates(facts, own, memory, best, others, buckets)
    candidates = find_corpus_candidates(candidates, facts, own, served)
    places, known, kinds, ranks, owners, alive = candidates
    alive = flags(alive & (known >= tl.load(figures + at.SHORTEST)))
    tl.store(voted + each, predicted_token(own, memory, owners, kinds, places, alive, vocab_size))
    tl.store(voted + at.CANDIDATES + each, kinds * of.LENGTHS + length_class(known), mask=alive)
    tl.store(facts + at.VOTED_FOR, own[1])
    return places, known, kinds, ranks, owners, alive


@triton.jit
def next_match(matches, number, before):
    """Return the best of the matches that are below another one."""
    each = tl.arange(0, at.CANDIDATES)
    best = tl.full([], 0, tl.int64)
    for first in range(0, number, at.CANDIDATES):
        found = tl.load(matches + first + each, mask=first + each < number, other=0)
        best = larger(best, tl.reduce(tl.where(found < before, found, 0), 0, larger))
    return best


@triton.jit
def predicted_token(own, memory, owners, kinds, places, mask, vocab_size):
    """Return the token at each candidate's place, -1 for none."""
    origins = origins_of(kinds)
    of_ring = ring_token(memory, owners, places, mask & (origins == 2))
    of_corpora = tl.load(memory[4] + places, mask=flags(mask & (origins == 4)), other=-1)
    tokens = tl.load(own[0] + places, mask=flags(mask & (origins == 1)), other=-1)
    tokens = tl.where(origins == 2, of_ring, tl.where(origins == 4, of_corpora, tokens))
    return tl.where((tokens >= 0) & (tokens < vocab_size), tokens, -1)
