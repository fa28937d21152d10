"""The lookup for GPUs, in Triton; `plain` is the reference and says what each function does.

A step launches `scan`, of a program per row and block of its text, and `draft`, of a program per row; the first block
of a row learns, and all programs count by atomic additions of whole numbers.  `remember` is one program.  So results
do not depend on the order of programs.  No argument is specialised for.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from specplug.lookup import counts as of
from specplug.lookup import layout as at
from specplug.lookup.layout import Drafts, Rows, State

GENERATION, OWNER, START, HIT_RATE, VOTED_FOR, CHAIN_FOR, CHAIN_NEXT, CHAIN_END, ANCHORS = map(tl.constexpr, range(9))
OWN, RESPONSE, NEAR, ALIGNED, RESPONSE_ALIGNED = map(tl.constexpr, range(5))
FACTS, CANDIDATES, OWN_MATCH, OWN_ANCHOR = map(tl.constexpr, (at.FACTS, at.CANDIDATES, at.OWN_MATCH, at.OWN_ANCHOR))
TABLE_CANDIDATES, RESPONSE_ANCHOR, LONGEST = map(tl.constexpr, (at.TABLE_CANDIDATES, at.RESPONSE_ANCHOR, at.LONGEST))
CONTEXT, ENTRIES, SPARED, GRANULE = map(tl.constexpr, (at.CONTEXT, at.ENTRIES, at.SPARED, at.GRANULE))
FOLLOWED, FORGET, WINDOW, BACK = map(tl.constexpr, (at.FOLLOWED, at.FORGET, at.WINDOW, at.BACK))
LEVELS, UNIT, FRACTION, MULTIPLIER = map(tl.constexpr, (at.LEVELS, at.UNIT, at.FRACTION, at.MULTIPLIER))
MOST_ODDS, MOST_LOG, CONTEXTS, TOKENS = map(tl.constexpr, (at.MOST_ODDS, at.MOST_LOG, of.CONTEXTS, of.TOKENS))
LENGTHS, SHARES, SUPPORTS, HIT_RATES = map(tl.constexpr, (of.LENGTHS, of.SHARES, of.SUPPORTS, of.HIT_RATES))
ORIGINS, HASHES, COARSE, EVIDENCE = map(tl.constexpr, (of.ORIGINS, of.HASHES, of.COARSE, of.EVIDENCE))
LONG_KEY, SHORT_KEY, BOUNDS = map(tl.constexpr, (*at.KEYS, len(at.SHARE_BOUNDS)))
POWERS, PROBABILITIES, AGES = map(tl.constexpr, (at.FRACTION, 2 * at.FRACTION, 2 * at.FRACTION + at.MOST_LOG // 2))
SHARE_BOUNDS = tl.constexpr(AGES.value + at.TABLE_CANDIDATES)
"""Where parts of `FIGURES` begin, as do those of the line above."""


def kernel(function: Any) -> Any:
    """Decorate a kernel, of which one variant serves all arguments but those in capitals."""
    names = [name for name in function.__code__.co_varnames[: function.__code__.co_argcount] if not name.isupper()]
    return triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)(function)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def smaller(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def flags(mask):
    """Return a mask as booleans, which a vector & a scalar is not in Triton's interpreter."""
    return mask.to(tl.int32) > 0


@triton.jit
def log2(figures, number):
    exponent = (number * 0).to(tl.int32)
    for step in tl.static_range(5):
        exponent += tl.where((number >> exponent) >= (1 << (16 >> step)), 16 >> step, 0)
    return exponent * FRACTION + tl.load(figures + ((number << 8 >> exponent) & 255))


@triton.jit
def counted(table, rows, mask):
    hits = tl.load(table + 2 * rows, mask=mask, other=0)
    tries = tl.load(table + 2 * rows + 1, mask=mask, other=0)
    return hits.to(tl.int64), tries.to(tl.int64)


@triton.jit
def log_odds(table, figures, rows, mask):
    hits, tries = counted(table, rows, mask)
    return log2(figures, larger(hits, 1)) - log2(figures, larger(tries - hits, 1))


@triton.jit
def log_odds_after(table, figures, rows, mask, level):
    hits, tries = counted(table, rows, mask)
    scale = LEVELS // (2 * UNIT)
    return log2(figures, hits * scale + level) - log2(figures, (tries - hits) * scale + LEVELS - level)


@triton.jit
def weight(figures, log_odds, ranks):
    log = larger(2 * smaller(log_odds, MOST_ODDS) + 2 * MOST_ODDS - tl.load(figures + AGES + ranks), 0)
    return tl.load(figures + POWERS + (log & (FRACTION - 1))).to(tl.int64) << (log >> 8)


@triton.jit
def probability(figures, log_odds):
    return tl.load(figures + PROBABILITIES + ((smaller(larger(log_odds, -MOST_LOG), MOST_LOG - 1) + MOST_LOG) >> 2))


@triton.jit
def length_class(length):
    over = (length > 8).to(tl.int32) + (length > 12).to(tl.int32) + (length > 16).to(tl.int32)
    return smaller(length, 8) + over + (length > 24).to(tl.int32) + (length > 40).to(tl.int32)


@triton.jit
def share_class(figures, score, total):
    bounds = tl.load(figures + SHARE_BOUNDS + tl.arange(0, BOUNDS))
    return tl.reduce((score > (total >> 12) * bounds).to(tl.int32), 0, plus)


@triton.jit
def mixed(hashed, token):
    return (((hashed ^ token) & 0x7FFFFFFF).to(tl.int64) * MULTIPLIER >> 16) & 0x7FFFFFFF


@triton.jit
def bucket_of(text, end, owner, buckets, KEY: tl.constexpr):
    hashed = mixed(owner.to(tl.int64), 0) + (end * 0).to(tl.int64)
    is_text = end >= KEY
    for distance in tl.static_range(KEY):
        token = tl.load(text + end - 1 - distance, mask=end >= KEY, other=-1)
        is_text = is_text & (token >= 0)
        hashed = mixed(hashed, token.to(tl.int64))
    return tl.where(is_text, (hashed >> 4) & (buckets - 1), -1)


@kernel
def scan_kernel(
    slots, generations, lengths, limits, texts, texts_stride, facts, chain, voted, table, chain_length, matches,
    matches_stride, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Learn, in the first block of a row, and write the best match in a block."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    n = tl.load(lengths + row)
    limit = tl.load(limits + row)
    facts = facts + slot * FACTS
    text = texts + slot * texts_stride
    is_current = tl.load(facts + GENERATION) == tl.load(generations + row)
    if (block == 0) & is_current:
        own_chain = chain + slot * 4 * chain_length
        own_votes = voted + slot * 2 * CANDIDATES
        learn(facts, own_chain, own_votes, table, text, n, chain_length, COLUMNS)
    best = tl.full([], 0, tl.int64)
    if is_current & (limit > 0) & (block * BLOCK < n - 1):
        places = block * BLOCK + 1 + tl.arange(0, BLOCK)
        found = match_lengths(text, n, places).to(tl.int64)
        best = tl.reduce(tl.where(found > 0, (found << 32) + places, 0), 0, larger)
    tl.store(matches + row * matches_stride + block, best)


@triton.jit
def match_lengths(text, n, places):
    """Return how many tokens before each place match the text's end; a block ends where no place is left."""
    found = places * 0
    is_equal = places < n
    distance = 1
    while (distance <= LONGEST) & (tl.reduce(is_equal.to(tl.int32), 0, larger) > 0):
        for _ in tl.static_range(4):
            wanted = tl.load(text + n - distance, mask=n >= distance, other=-1)
            mask = flags(is_equal & (places >= distance) & (wanted >= 0))
            is_equal = mask & (tl.load(text + places - distance, mask=mask, other=-1) == wanted)
            found += is_equal.to(tl.int32)
            distance += 1
    return found


@triton.jit
def ring_token(memory, places, mask):
    """Return tokens of the ring; the owner is compared before any is read."""
    ring, owners, capacity, end, owner = memory
    index = places & (capacity - 1)
    mask = flags(mask & (places >= 0) & (places >= end - capacity) & (places < end))
    mask = mask & (tl.load(owners + index // GRANULE, mask=mask, other=0) == owner)
    return tl.load(ring + index, mask=mask, other=-1)


@triton.jit
def ring_match(memory, text, n, places, mask):
    """Return how many tokens before each of the places match the text's end, in pieces of 16."""
    found = places * 0
    columns = tl.arange(0, 16)
    for first in range(0, LONGEST, 16):
        if tl.reduce(mask.to(tl.int32), 0, larger) > 0:
            distance = first + 1 + columns
            wanted = tl.load(text + n - distance, mask=n >= distance, other=-1)
            there = places[:, None] - distance[None, :]
            tokens = ring_token(memory, there, mask[:, None] & (wanted >= 0)[None, :])
            is_other = (tokens < 0) | (tokens != wanted[None, :])
            equal = tl.reduce(tl.where(is_other, columns[None, :], 16), 1, smaller)
            found += tl.where(mask, equal, 0)
            mask = mask & (equal == 16)
    return found


@triton.jit
def candidates(facts, own, memory, best, buckets):
    """Return place, length, kind, rank and presence of the candidates, [CANDIDATES], and keep the anchors."""
    each = tl.arange(0, CANDIDATES)
    places, lengths, is_entry = response_candidates(own, memory, buckets)
    is_newer = is_entry[None, :] & (places[None, :] > places[:, None])
    ranks = tl.where(is_entry, tl.reduce(is_newer.to(tl.int32), 1, plus), 0)
    most = tl.reduce(tl.where(is_entry, (lengths.to(tl.int64) << 32) + places, 0), 0, larger)
    length = (best >> 32).to(tl.int32)
    place = (best & 0xFFFFFFFF).to(tl.int32)
    nearby, known = anchor(facts, 0, own, memory, length >= FOLLOWED, place)
    distant, reached = anchor(facts, 1, own, memory, most > 0, (most & 0xFFFFFFFF).to(tl.int32))
    is_near = (known >= 0) & (nearby - place < WINDOW) & (place - nearby < WINDOW)
    kinds = tl.where(each == OWN_MATCH, tl.where(is_near, NEAR, OWN), RESPONSE)
    kinds = tl.where(each == OWN_ANCHOR, ALIGNED, tl.where(each == RESPONSE_ANCHOR, RESPONSE_ALIGNED, kinds))
    places = tl.where(each == OWN_MATCH, place, tl.where(each == OWN_ANCHOR, nearby, places))
    places = tl.where(each == RESPONSE_ANCHOR, distant, places)
    lengths = tl.where(each == OWN_MATCH, length, tl.where(each == OWN_ANCHOR, known, lengths))
    lengths = tl.where(each == RESPONSE_ANCHOR, reached, lengths)
    is_there = is_entry | ((each == OWN_MATCH) & (length > 0)) | ((each == RESPONSE_ANCHOR) & (reached >= 0))
    is_there = is_there | ((each == OWN_ANCHOR) & (known >= 0) & ((length == 0) | (nearby != place)))
    return places, lengths, kinds, ranks, flags(is_there)


@triton.jit
def response_candidates(own, memory, buckets):
    text = own[0]
    n = own[1]
    owner = memory[4]
    each = tl.arange(0, CANDIDATES)
    quarter = memory[2] // 4
    is_long = each < ENTRIES
    long = bucket_of(text, n, owner, quarter, LONG_KEY)
    short = bucket_of(text, n, owner, quarter, SHORT_KEY)
    bucket = tl.where(is_long, long, short)
    key = tl.where(is_long, LONG_KEY, SHORT_KEY)
    entries = buckets + (bucket + tl.where(is_long, 0, quarter)) * ENTRIES + each % ENTRIES
    mask = flags((each < TABLE_CANDIDATES) & (owner > 0) & (bucket >= 0))
    places = tl.load(entries, mask=mask, other=0)
    mask = mask & (places > 0)
    mask = mask & (ring_token(memory, places, mask) >= 0)
    lengths = ring_match(memory, text, n, places, mask)
    mask = mask & (lengths >= key)
    is_same = mask[None, :] & (places[:, None] == places[None, :]) & (each[None, :] < each[:, None])
    return places, lengths, mask & (tl.reduce(is_same.to(tl.int32), 1, larger) == 0)


@triton.jit
def anchor(facts, WHICH: tl.constexpr, own, memory, follows, place):
    """Return the anchor's place and length, -1 for no candidate; if the text `follows` a place, that is the anchor."""
    text, n, last = own
    shift = tl.load(facts + ANCHORS + 2 * WHICH)
    followed = tl.load(facts + ANCHORS + 2 * WHICH + 1)
    is_known = (followed > 0) & (followed <= n) & (n - followed < FORGET) & (follows == 0)
    order = tl.arange(0, 16)
    offsets = tl.where(order % 2 == 1, (order + 1) // 2, -(order // 2))
    nearby = n + shift + tl.where(order <= 2 * BACK, offsets, order - BACK)
    if WHICH == 0:
        before = tl.load(text + nearby - 1, mask=flags(is_known & (nearby > 0) & (nearby <= n)), other=-1)
        there = tl.load(text + nearby, mask=flags(is_known & (nearby >= 0) & (nearby < n)), other=-1)
    else:
        is_known = is_known & (memory[4] > 0)
        before = ring_token(memory, nearby - 1, is_known)
        there = ring_token(memory, nearby, is_known)
    first = tl.reduce(tl.where((before >= 0) & (before == last) & (there >= 0), order, 16), 0, smaller)
    expected = tl.reduce(tl.where(order == 0, there, -1), 0, larger)
    found = tl.where(first < 16, tl.reduce(tl.where(order == first, nearby, 0), 0, plus), n + shift)
    tl.debug_barrier()
    tl.store(facts + ANCHORS + 2 * WHICH, tl.where(follows, place, found) - n, mask=follows | (first < 16))
    tl.store(facts + ANCHORS + 2 * WHICH + 1, n, mask=follows)
    return found, tl.where(first < 16, 1, tl.where(expected >= 0, 0, -1))


@kernel
def draft_kernel(
    slots, generations, lengths, limits, texts, texts_stride, facts, chain, voted, table, chain_length, ring, owners,
    buckets, end, capacity, matches, matches_stride, blocks, figures, ids, ids_stride, confidences, sources,
    draft_lengths, draft_length, vocab_size, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Draft for a row, and pad."""
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    each = tl.arange(0, CANDIDATES)
    slot = tl.load(slots + row).to(tl.int64)
    n = tl.load(lengths + row)
    facts = facts + slot * FACTS
    text = texts + slot * texts_stride
    chain = chain + slot * 4 * chain_length
    voted = voted + slot * 2 * CANDIDATES
    limit = smaller(tl.load(limits + row), draft_length)
    last = tl.load(text + n - 1, mask=n > 0, other=-1)
    drafted = n * 0
    tokens = columns * 0
    origins = columns * 0
    levels = columns * 0
    is_current = tl.load(facts + GENERATION) == tl.load(generations + row)
    if is_current & (n > tl.load(facts + START)) & (limit > 0):
        own = (text, n, last)
        memory = (ring, owners, capacity, tl.load(end), tl.load(facts + OWNER))
        best = tl.full([], 0, tl.int64)
        for first in range(0, blocks, CANDIDATES):
            of_blocks = tl.load(matches + row * matches_stride + first + each, mask=first + each < blocks, other=0)
            best = larger(best, tl.reduce(of_blocks, 0, larger))
        found = candidates(facts, own, memory, best, buckets)
        places, known, kinds, _, alive = found
        tl.store(voted + each, predicted(own, memory, kinds, places, alive, vocab_size))
        tl.store(voted + CANDIDATES + each, kinds * LENGTHS + length_class(known), mask=alive)
        out = vote(facts, chain, chain_length, own, memory, found, limit, table, figures, vocab_size, columns)
        drafted, tokens, origins, levels = out
    mask = columns < draft_length
    is_drafted = columns < drafted
    padded = tl.where(is_drafted, tokens, larger(last, 0)).to(tl.int64)
    tl.store(ids + row * ids_stride + columns, padded, mask=mask)
    rates = tl.where(is_drafted, levels, 0).to(tl.float32) * (1.0 / LEVELS)
    tl.store(confidences + row * ids_stride + columns, rates, mask=mask)
    tl.store(sources + row * ids_stride + columns, tl.where(is_drafted, origins, -1), mask=mask)
    tl.store(draft_lengths + row, drafted)


@triton.jit
def predicted(own, memory, kinds, places, mask, vocab_size):
    """Return the token at each candidate's place, -1 for none."""
    is_response = (kinds == RESPONSE) | (kinds == RESPONSE_ALIGNED)
    of_ring = ring_token(memory, places, mask & is_response)
    tokens = tl.load(own[0] + places, mask=flags(mask & (is_response == 0)), other=-1)
    tokens = tl.where(is_response, of_ring, tokens)
    return tl.where((tokens >= 0) & (tokens < vocab_size), tokens, -1)


@triton.jit
def vote(facts, chain, chain_length, own, memory, found, limit, table, figures, vocab_size, columns):
    """Return the number of drafted tokens, the tokens, their sources and their levels, [COLUMNS]."""
    n = own[1]
    last = own[2]
    owner = memory[4]
    each = tl.arange(0, CANDIDATES)
    places, known, kinds, ranks, alive = found
    hit_rate = tl.load(facts + HIT_RATE)
    start = tl.load(facts + START)
    is_pending = tl.load(facts + CHAIN_FOR) == n
    is_own = alive & (kinds != RESPONSE) & (kinds != RESPONSE_ALIGNED)
    period = tl.where(is_own, n - places, 1)
    drafted = n * 0
    ids = columns * 0
    sources = columns * 0
    evidence = columns * 0
    contexts = columns * 0
    own_rows = columns * 0
    for place in range(limit):
        offset = tl.where(is_own, place % period, place)  # own text repeats in its draft
        token = predicted(own, memory, kinds, places + offset, alive, vocab_size)
        alive = alive & (token >= 0)
        rows = kinds * LENGTHS + length_class(known + place)
        voice = weight(figures, log_odds(table, figures, rows, alive), ranks)
        is_same = alive[None, :] & (token[:, None] == token[None, :])
        scores = tl.reduce(tl.where(is_same, voice[None, :], 0), 1, plus)
        longest = tl.reduce(tl.where(is_same, known[None, :] + place, 0), 1, larger)
        worth = tl.where(alive, scores * (1 + length_class(longest)), -1)
        is_best = alive & (worth == tl.reduce(worth, 0, larger))
        index = tl.reduce(tl.where(is_best, each, CANDIDATES), 0, smaller)
        total = tl.reduce(tl.where(alive, voice, 0), 0, plus)
        chosen = tl.reduce(tl.where(each == index, token, 0), 0, plus)
        score = tl.reduce(tl.where(each == index, scores, 0), 0, plus)
        size = length_class(tl.reduce(tl.where(each == index, longest, 0), 0, plus))
        alive = alive & (token == chosen)
        support = tl.reduce(alive.to(tl.int32), 0, plus)
        own_index = tl.reduce(tl.where(alive & is_own, each, CANDIDATES), 0, smaller)
        own_place = tl.reduce(tl.where(each == own_index, places, 0), 0, plus)
        both = (own_index < CANDIDATES).to(tl.int32) + 2 * tl.reduce((alive & (is_own == 0)).to(tl.int32), 0, larger)
        near = tl.reduce((alive & (kinds >= NEAR)).to(tl.int32), 0, larger)
        share = share_class(figures, score, total)
        row, context, own_row = judging_rows(chosen, last, owner, size, share, support, hit_rate, both, near)
        here = flags((columns == place) & (index < CANDIDATES))
        ids = tl.where(here, chosen, ids)
        evidence = tl.where(here, row, evidence)
        contexts = tl.where(here, context, contexts)
        own_rows = tl.where(here, own_row, own_rows)
        sources = tl.where(here, tl.where(own_index < CANDIDATES, (own_place + place < start).to(tl.int32), 2), sources)
        drafted += (index < CANDIDATES).to(tl.int32)
        last = chosen
    levels = confidence(table, figures, evidence, contexts, own_rows, columns < drafted)
    mask = flags((columns < drafted) & (is_pending == 0))
    tl.debug_barrier()
    tl.store(chain + columns, ids, mask=mask)
    tl.store(chain + chain_length + columns, evidence, mask=mask)
    tl.store(chain + 2 * chain_length + columns, contexts, mask=mask)
    tl.store(chain + 3 * chain_length + columns, own_rows, mask=mask)
    tl.store(facts + VOTED_FOR, n)
    tl.store(facts + CHAIN_FOR, tl.where(drafted > 0, n, 0), mask=is_pending == 0)
    tl.store(facts + CHAIN_NEXT, 0, mask=is_pending == 0)
    tl.store(facts + CHAIN_END, drafted, mask=is_pending == 0)
    return drafted, ids, sources, levels


@triton.jit
def judging_rows(token, last, owner, size, share, support, hit_rate, origins, near):
    supported = (support > 1).to(tl.int32) + (support > 3).to(tl.int32)
    rate = (hit_rate >= LEVELS // 4).to(tl.int32) + (hit_rate >= LEVELS * 3 // 5).to(tl.int32)
    key = ((size * SHARES + share) * SUPPORTS + supported) * HIT_RATES + rate
    context = (mixed(mixed(owner, 0), last.to(tl.int64)) >> 4 & (HASHES - 1)).to(tl.int32) * COARSE
    context = 3 * (context + smaller(size // 2, COARSE - 1)) + (share > 2).to(tl.int32) + (share > 5).to(tl.int32)
    own = (mixed(mixed(owner, 0), token.to(tl.int64)) >> 4 & (HASHES - 1)).to(tl.int32)
    evidence = (key * ORIGINS + origins) * 2 + near
    own_row = 2 * own + (share > 4).to(tl.int32)
    return EVIDENCE + evidence, CONTEXTS + context, TOKENS + own_row


@triton.jit
def confidence(table, figures, evidence, contexts, tokens, mask):
    seen = log_odds(table, figures, evidence, mask)
    level = smaller(larger(probability(figures, seen), 20), LEVELS - 20)
    after = log_odds_after(table, figures, contexts, mask, level) + log_odds_after(table, figures, tokens, mask, level)
    return probability(figures, (2 * seen + after) >> 2)


@triton.jit
def count(table, rows, hits, mask):
    mask = flags(mask)
    tl.atomic_add(table + 2 * rows, tl.where(hits, UNIT, 0), mask=mask, sem="relaxed")
    tl.atomic_add(table + 2 * rows + 1, tl.where(mask, UNIT, 0), mask=mask, sem="relaxed")


@triton.jit
def learn(facts, chain, voted, table, text, n, chain_length, COLUMNS: tl.constexpr):
    each = tl.arange(0, CANDIDATES)
    columns = tl.arange(0, COLUMNS)
    voted_for = tl.load(facts + VOTED_FOR)
    base = tl.load(facts + CHAIN_FOR)
    hit_rate = tl.load(facts + HIT_RATE)
    next_place = tl.load(facts + CHAIN_NEXT)
    stop = tl.load(facts + CHAIN_END)
    is_voted = (voted_for > 0) & (voted_for < n)
    first = tl.load(text + voted_for, mask=is_voted, other=-1)
    tokens = tl.load(voted + each)
    rows = tl.load(voted + CANDIDATES + each)
    count(table, rows, tokens == first, is_voted & (tokens >= 0))
    is_chained = (base > 0) & (base < n)
    inside = flags(is_chained & (next_place + columns < stop) & (base + columns < n))
    tokens = tl.load(chain + next_place + columns, mask=inside, other=-1)
    is_right = inside & (tokens == tl.load(text + base + columns, mask=inside, other=-1))
    wrong = tl.reduce(tl.where(is_right, COLUMNS, columns), 0, smaller)
    number = tl.reduce(inside.to(tl.int32), 0, plus)
    judged = inside & (columns <= wrong)
    for kind in tl.static_range(1, 4):
        rows = tl.load(chain + kind * chain_length + next_place + columns, mask=judged, other=0)
        count(table, rows, columns < wrong, judged)
    hit_rate += (tl.where(wrong > 0, LEVELS, 0) - hit_rate) * 51 >> 8
    is_held = (wrong >= number) & (next_place + number < stop)
    tl.debug_barrier()
    tl.store(facts + VOTED_FOR, 0, mask=voted_for != n)
    tl.store(facts + HIT_RATE, hit_rate, mask=is_chained & (next_place == 0))
    tl.store(facts + CHAIN_FOR, tl.where(is_chained & is_held, base + number, 0), mask=is_chained | (base > n))
    tl.store(facts + CHAIN_NEXT, next_place + smaller(wrong + 1, number), mask=is_chained)


@kernel
def remember_kernel(
    texts, texts_stride, slot, prompt, begin, end, owner, number, ring, owners, buckets, ring_end, capacity,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Enter a response, by one program."""
    base = tl.load(ring_end)
    quarter = capacity // 4
    entry = (owner * SPARED + number % (ENTRIES - SPARED)) % ENTRIES
    begin = larger(begin, end - quarter)
    first = larger(prompt, begin - CONTEXT)
    text = texts + slot.to(tl.int64) * texts_stride + first
    length = end - first
    size = tl.where(end > begin, (length + 2 + GRANULE - 1) // GRANULE * GRANULE, 0)
    for piece in range(0, size, BLOCK):
        k = piece + tl.arange(0, BLOCK)
        index = (base + k) & (capacity - 1)
        tl.store(ring + index, tl.load(text + k - 1, mask=(k > 0) & (k <= length), other=-1), mask=k < size)
        tl.store(owners + index // GRANULE, owner, mask=(k < size) & (k % GRANULE == 0))
        places, k = base + 1 + k, tl.where((k >= begin - first) & (k < length), k, 0)  # no key ends before token 0
        long = bucket_of(text, k, owner, quarter, LONG_KEY)
        short = bucket_of(text, k, owner, quarter, SHORT_KEY)
        tl.atomic_max(buckets + long * ENTRIES + entry, places, mask=long >= 0, sem="relaxed")
        tl.atomic_max(buckets + (quarter + short) * ENTRIES + entry, places, mask=short >= 0, sem="relaxed")
    tl.debug_barrier()
    tl.store(ring_end, base + size)


def scan(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `plain.scan`."""
    step = *rows, texts, texts.stride(0), *state[:4], state.chain.shape[2], state.matches, state.matches.stride(0)
    grid = (len(rows.slots), state.matches.shape[1])
    columns = triton.next_power_of_2(state.chain.shape[2])
    scan_kernel[grid](*step, COLUMNS=columns, BLOCK=at.BLOCK, num_warps=4)


def draft(state: State, texts: Tensor, rows: Rows, drafts: Drafts, vocab_size: int) -> None:
    """Launch; see `plain.draft`."""
    step = *rows, texts, texts.stride(0), *state[:4], state.chain.shape[2], *state[4:8], len(state.ring)
    matches = state.matches, state.matches.stride(0), state.matches.shape[1], state.figures
    out = drafts.ids, drafts.ids.stride(0), *drafts[1:], drafts.ids.shape[1], vocab_size
    launch = draft_kernel[(len(rows.slots),)]
    launch(*step, *matches, *out, COLUMNS=triton.next_power_of_2(state.chain.shape[2]), num_warps=1)


def remember(state: State, texts: Tensor, *response: int) -> None:
    """Launch; see `plain.remember`."""
    launch = remember_kernel[(1,)]
    launch(texts, texts.stride(0), *response, *state[4:8], len(state.ring), BLOCK=1024, num_warps=8)
