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
FACTS, LANES, TABLE_LANES, OWN_MATCH, OWN_ANCHOR, RESPONSE_ANCHOR, LONGEST, CONTEXT, ENTRIES, SPARED = map(
    tl.constexpr,
    (at.FACTS, at.LANES, at.TABLE_LANES, at.OWN_MATCH, at.OWN_ANCHOR, at.RESPONSE_ANCHOR)
    + (at.LONGEST, at.CONTEXT, at.ENTRIES, at.SPARED),
)
GRANULE, FOLLOWED, FORGET, WINDOW, BACK, LEVELS, UNIT, FRACTION, MOST_ODDS, MOST_LOG, MULTIPLIER = map(
    tl.constexpr,
    (at.GRANULE, at.FOLLOWED, at.FORGET, at.WINDOW, at.BACK, at.LEVELS, at.UNIT, at.FRACTION, at.MOST_ODDS)
    + (at.MOST_LOG, at.MULTIPLIER),
)
LENGTHS, SHARES, SUPPORTS, HIT_RATES, ORIGINS, HASHES, COARSE, EVIDENCE, CONTEXTS, TOKENS = map(
    tl.constexpr,
    (of.LENGTHS, of.SHARES, of.SUPPORTS, of.HIT_RATES, of.ORIGINS, of.HASHES, of.COARSE, of.EVIDENCE, of.CONTEXTS)
    + (of.TOKENS,),
)
LONG_KEY, SHORT_KEY = map(tl.constexpr, at.KEYS)
SHARE_0, SHARE_1, SHARE_2, SHARE_3, SHARE_4, SHARE_5, SHARE_6, SHARE_7 = map(tl.constexpr, at.SHARE_BOUNDS)
POWERS, PROBABILITIES, AGES = (
    tl.constexpr(place) for place in (at.FRACTION, 2 * at.FRACTION, 2 * at.FRACTION + len(at.PROBABILITIES))
)
"""Where parts of `FIGURES` begin."""
MOST_TRIES, MOST_TOKEN_TRIES = tl.constexpr(at.MOST_TRIES * at.UNIT), tl.constexpr(at.MOST_TOKEN_TRIES * at.UNIT)


def kernel(function: Any) -> Any:
    """Decorate a kernel, of which one variant serves all arguments but those in capitals."""
    names = [name for name in function.__code__.co_varnames[: function.__code__.co_argcount] if not name.isupper()]
    return triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)(function)


# -- arithmetic ------------------------------------------------------------------------------------------------------


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
    """Return hits and tries, int64."""
    hits, tries = tl.load(table + 2 * rows, mask=mask, other=0), tl.load(table + 2 * rows + 1, mask=mask, other=0)
    return hits.to(tl.int64), tries.to(tl.int64)


@triton.jit
def log_odds(figures, hits, tries):
    return log2(figures, larger(hits, 1)) - log2(figures, larger(tries - hits, 1))


@triton.jit
def log_odds_after(figures, hits, tries, level):
    scale = LEVELS // (2 * UNIT)
    return log2(figures, hits * scale + level) - log2(figures, (tries - hits) * scale + LEVELS - level)


@triton.jit
def weight(figures, log_odds, ranks):
    log = 2 * smaller(larger(log_odds, -MOST_ODDS), MOST_ODDS) - tl.load(figures + AGES + ranks) + 2 * MOST_ODDS
    log = larger(log, 0)
    return tl.load(figures + POWERS + (log & (FRACTION - 1))).to(tl.int64) << (log >> 8)


@triton.jit
def probability(figures, log_odds):
    return tl.load(figures + PROBABILITIES + ((smaller(larger(log_odds, -MOST_LOG), MOST_LOG - 1) + MOST_LOG) >> 2))


@triton.jit
def length_class(length):
    over = (length > 8).to(tl.int32) + (length > 12).to(tl.int32) + (length > 16).to(tl.int32)
    return smaller(length, 8) + over + (length > 24).to(tl.int32) + (length > 40).to(tl.int32)


@triton.jit
def share_class(score, total):
    unit = total >> 12
    low = (score > unit * SHARE_0).to(tl.int32) + (score > unit * SHARE_1).to(tl.int32)
    low += (score > unit * SHARE_2).to(tl.int32) + (score > unit * SHARE_3).to(tl.int32)
    high = (score > unit * SHARE_4).to(tl.int32) + (score > unit * SHARE_5).to(tl.int32)
    return low + high + (score > unit * SHARE_6).to(tl.int32) + (score > unit * SHARE_7).to(tl.int32)


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


# -- matches ---------------------------------------------------------------------------------------------------------


@kernel
def scan_kernel(
    slots,
    generations,
    lengths,
    limits,
    texts,
    texts_stride,
    facts,
    chain,
    voted,
    table,
    chain_length,
    matches,
    matches_stride,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Learn, in the first block of a row, and write the best match in a block."""
    row, block = tl.program_id(0), tl.program_id(1)
    slot, n, limit = tl.load(slots + row).to(tl.int64), tl.load(lengths + row), tl.load(limits + row)
    facts, text = facts + slot * FACTS, texts + slot * texts_stride
    is_current = tl.load(facts + GENERATION) == tl.load(generations + row)
    if (block == 0) & is_current:
        learn(facts, chain + slot * 4 * chain_length, voted + slot * 2 * LANES, table, text, n, chain_length, COLUMNS)
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
def ring_token(ring, owners, capacity, end, owner, places, mask):
    """Return tokens of the ring; the owner is compared before any is read."""
    index = places & (capacity - 1)
    mask = flags(mask & (places >= 0) & (places >= end - capacity) & (places < end))
    mask = mask & (tl.load(owners + index // GRANULE, mask=mask, other=0) == owner)
    return tl.load(ring + index, mask=mask, other=-1)


@triton.jit
def ring_match(ring, owners, capacity, end, owner, text, n, places, mask):
    """Return how many tokens before each of the places match the text's end, in pieces of 16."""
    found = places * 0
    columns = tl.arange(0, 16)
    for first in range(0, LONGEST, 16):
        if tl.reduce(mask.to(tl.int32), 0, larger) > 0:
            distance = first + 1 + columns
            wanted = tl.load(text + n - distance, mask=n >= distance, other=-1)
            there = places[:, None] - distance[None, :]
            tokens = ring_token(ring, owners, capacity, end, owner, there, mask[:, None] & (wanted >= 0)[None, :])
            is_other = (tokens < 0) | (tokens != wanted[None, :])
            equal = tl.reduce(tl.where(is_other, columns[None, :], 16), 1, smaller)
            found += tl.where(mask, equal, 0)
            mask = mask & (equal == 16)
    return found


# -- candidates ------------------------------------------------------------------------------------------------------


@triton.jit
def candidates(facts, text, n, last, best, owner, ring, owners, capacity, end, buckets, bucket_count):
    """Return place, length, kind, rank and presence of the candidates, [LANES], and keep the anchors."""
    lanes = tl.arange(0, LANES)
    places, lengths, is_entry = response_candidates(
        text, n, owner, ring, owners, capacity, end, buckets, bucket_count, lanes
    )
    is_newer = is_entry[None, :] & (places[None, :] > places[:, None])
    ranks = tl.reduce(is_newer.to(tl.int32), 1, plus)
    ranks = tl.where(is_entry, ranks, 0)
    has_responses = tl.reduce(is_entry.to(tl.int32), 0, larger) > 0
    most = tl.reduce(tl.where(is_entry, (lengths.to(tl.int64) << 32) + places, 0), 0, larger)
    length, place = (best >> 32).to(tl.int32), (best & 0xFFFFFFFF).to(tl.int32)
    nearby, known = anchor(facts, 0, text, n, last, owner, ring, owners, capacity, end, length >= FOLLOWED, place)
    followed = (most & 0xFFFFFFFF).to(tl.int32)
    distant, reached = anchor(facts, 1, text, n, last, owner, ring, owners, capacity, end, has_responses, followed)
    is_near = (known >= 0) & (nearby - place < WINDOW) & (place - nearby < WINDOW)
    kinds = tl.where(lanes == OWN_MATCH, tl.where(is_near, NEAR, OWN), RESPONSE)
    kinds = tl.where(lanes == OWN_ANCHOR, ALIGNED, tl.where(lanes == RESPONSE_ANCHOR, RESPONSE_ALIGNED, kinds))
    places = tl.where(lanes == OWN_MATCH, place, tl.where(lanes == OWN_ANCHOR, nearby, places))
    places = tl.where(lanes == RESPONSE_ANCHOR, distant, places)
    lengths = tl.where(lanes == OWN_MATCH, length, tl.where(lanes == OWN_ANCHOR, known, lengths))
    lengths = tl.where(lanes == RESPONSE_ANCHOR, reached, lengths)
    is_there = is_entry | ((lanes == OWN_MATCH) & (length > 0)) | ((lanes == RESPONSE_ANCHOR) & (reached >= 0))
    is_there = is_there | ((lanes == OWN_ANCHOR) & (known >= 0) & ((length == 0) | (nearby != place)))
    return places, lengths, kinds, ranks, flags(is_there)


@triton.jit
def response_candidates(text, n, owner, ring, owners, capacity, end, buckets, bucket_count, lanes):
    long, short = bucket_of(text, n, owner, bucket_count, LONG_KEY), bucket_of(text, n, owner, bucket_count, SHORT_KEY)
    is_long = lanes < ENTRIES
    bucket, key = tl.where(is_long, long, short), tl.where(is_long, LONG_KEY, SHORT_KEY)
    entries = buckets + (bucket + tl.where(is_long, 0, bucket_count)) * ENTRIES + lanes % ENTRIES
    mask = flags((lanes < TABLE_LANES) & (owner > 0) & (bucket >= 0))
    places = tl.load(entries, mask=mask, other=0)
    mask = mask & (places > 0)
    mask = mask & (ring_token(ring, owners, capacity, end, owner, places, mask) >= 0)
    lengths = ring_match(ring, owners, capacity, end, owner, text, n, places, mask)
    mask = mask & (lengths >= key)
    is_same = mask[None, :] & (places[:, None] == places[None, :]) & (lanes[None, :] < lanes[:, None])
    return places, lengths, mask & (tl.reduce(is_same.to(tl.int32), 1, larger) == 0)


@triton.jit
def anchor(facts, WHICH: tl.constexpr, text, n, last, owner, ring, owners, capacity, end, follows, place):
    """Return the anchor's place and length, -1 for no candidate; if the text `follows` a place, that is the anchor."""
    shift, followed = tl.load(facts + ANCHORS + 2 * WHICH), tl.load(facts + ANCHORS + 2 * WHICH + 1)
    is_known = (followed > 0) & (followed <= n) & (n - followed < FORGET) & (follows == 0)
    order = tl.arange(0, 16)
    offsets = tl.where(order % 2 == 1, (order + 1) // 2, -(order // 2))
    nearby = n + shift + tl.where(order <= 2 * BACK, offsets, order - BACK)
    if WHICH == 0:
        before = tl.load(text + nearby - 1, mask=flags(is_known & (nearby > 0) & (nearby <= n)), other=-1)
        there = tl.load(text + nearby, mask=flags(is_known & (nearby >= 0) & (nearby < n)), other=-1)
    else:
        is_known = is_known & (owner > 0)
        before = ring_token(ring, owners, capacity, end, owner, nearby - 1, is_known & (order >= 0))
        there = ring_token(ring, owners, capacity, end, owner, nearby, is_known & (order >= 0))
    first = tl.reduce(tl.where((before >= 0) & (before == last) & (there >= 0), order, 16), 0, smaller)
    expected = tl.reduce(tl.where(order == 0, there, -1), 0, larger)
    found = tl.where(first < 16, tl.reduce(tl.where(order == first, nearby, 0), 0, plus), n + shift)
    tl.debug_barrier()
    tl.store(facts + ANCHORS + 2 * WHICH, tl.where(follows, place, found) - n, mask=follows | (first < 16))
    tl.store(facts + ANCHORS + 2 * WHICH + 1, n, mask=follows)
    return found, tl.where(first < 16, 1, tl.where(expected >= 0, 0, -1))


# -- drafts ----------------------------------------------------------------------------------------------------------


@kernel
def draft_kernel(
    slots,
    generations,
    lengths,
    limits,
    texts,
    texts_stride,
    facts,
    chain,
    voted,
    table,
    chain_length,
    ring,
    owners,
    capacity,
    buckets,
    bucket_count,
    end,
    matches,
    matches_stride,
    blocks,
    figures,
    ids,
    ids_stride,
    confidences,
    sources,
    draft_lengths,
    draft_length,
    vocab_size,
    COLUMNS: tl.constexpr,
):
    """Draft for a row, and pad."""
    row, columns, lanes = tl.program_id(0), tl.arange(0, COLUMNS), tl.arange(0, LANES)
    slot, n = tl.load(slots + row).to(tl.int64), tl.load(lengths + row)
    facts, text = facts + slot * FACTS, texts + slot * texts_stride
    chain, voted = chain + slot * 4 * chain_length, voted + slot * 2 * LANES
    limit = smaller(tl.load(limits + row), draft_length)
    last = tl.load(text + n - 1, mask=n > 0, other=-1)
    drafted, ids_of_row = n * 0, columns * 0 - 1
    origins, levels = columns * 0 - 1, columns * 0
    is_current = tl.load(facts + GENERATION) == tl.load(generations + row)
    if is_current & (n > tl.load(facts + START)) & (limit > 0):
        owner, stop = tl.load(facts + OWNER), tl.load(end)
        best = tl.full([], 0, tl.int64)
        for first in range(0, blocks, LANES):
            of_blocks = tl.load(matches + row * matches_stride + first + lanes, mask=first + lanes < blocks, other=0)
            best = larger(best, tl.reduce(of_blocks, 0, larger))
        places, known, kinds, ranks, alive = candidates(
            facts, text, n, last, best, owner, ring, owners, capacity, stop, buckets, bucket_count
        )
        tokens = predicted(text, n, owner, ring, owners, capacity, stop, kinds, places, alive, vocab_size)
        tl.store(voted + lanes, tokens)
        tl.store(voted + LANES + lanes, kinds * LENGTHS + length_class(known), mask=alive)
        drafted, ids_of_row, origins, levels = vote(
            facts, chain, chain_length, text, n, last, owner, ring, owners, capacity, stop, places, known, kinds, ranks,
            alive, limit, table, figures, vocab_size, columns, lanes,
        )  # fmt: skip
    mask, is_drafted = columns < draft_length, columns < drafted
    padded = tl.where(is_drafted, ids_of_row, larger(last, 0)).to(tl.int64)
    tl.store(ids + row * ids_stride + columns, padded, mask=mask)
    rates = tl.where(is_drafted, levels, 0).to(tl.float32) * (1.0 / LEVELS)
    tl.store(confidences + row * ids_stride + columns, rates, mask=mask)
    tl.store(sources + row * ids_stride + columns, tl.where(is_drafted, origins, -1), mask=mask)
    tl.store(draft_lengths + row, drafted)


@triton.jit
def predicted(text, n, owner, ring, owners, capacity, end, kinds, places, mask, vocab_size):
    """Return the token at each candidate's place, -1 for none; places in own text may lie beyond its end."""
    is_response = (kinds == RESPONSE) | (kinds == RESPONSE_ALIGNED)
    of_ring = ring_token(ring, owners, capacity, end, owner, places, mask & is_response)
    tokens = tl.load(text + places, mask=flags(mask & (is_response == 0)), other=-1)
    tokens = tl.where(is_response, of_ring, tokens)
    return tl.where((tokens >= 0) & (tokens < vocab_size), tokens, -1)


@triton.jit
def vote(
    facts, chain, chain_length, text, n, last, owner, ring, owners, capacity, end, places, known, kinds, ranks, alive,
    limit, table, figures, vocab_size, columns, lanes,
):  # fmt: skip
    """Return the number of drafted tokens, the tokens, their sources and their levels, [COLUMNS]."""
    hit_rate, start = tl.load(facts + HIT_RATE), tl.load(facts + START)
    is_pending = tl.load(facts + CHAIN_FOR) == n
    is_own = alive & (kinds != RESPONSE) & (kinds != RESPONSE_ALIGNED)
    drafted, ids = n * 0, columns * 0 - 1
    sources, evidence, contexts, own_rows = columns * 0, columns * 0, columns * 0, columns * 0
    for place in range(limit):
        offset = tl.where(is_own, place % tl.where(is_own, n - places, 1), place)  # own text repeats in its draft
        token = predicted(text, n, owner, ring, owners, capacity, end, kinds, places + offset, alive, vocab_size)
        alive = alive & (token >= 0)
        hits, tries = counted(table, kinds * LENGTHS + length_class(known + place), alive)
        voice = weight(figures, log_odds(figures, hits, tries), ranks)
        is_same = alive[None, :] & (token[:, None] == token[None, :])
        scores = tl.reduce(tl.where(is_same, voice[None, :], 0), 1, plus)
        longest = tl.reduce(tl.where(is_same, known[None, :] + place, 0), 1, larger)
        worth = tl.where(alive, scores * (1 + length_class(longest)), -1)
        most = tl.reduce(worth, 0, larger)
        lane = tl.reduce(tl.where(alive & (worth == most), lanes, LANES), 0, smaller)
        total = tl.reduce(tl.where(alive, voice, 0), 0, plus)
        chosen = tl.reduce(tl.where(lanes == lane, token, 0), 0, plus)
        score = tl.reduce(tl.where(lanes == lane, scores, 0), 0, plus)
        size = length_class(tl.reduce(tl.where(lanes == lane, longest, 0), 0, plus))
        here = flags((columns == place) & (lane < LANES))
        alive = alive & (token == chosen)
        support = tl.reduce(alive.to(tl.int32), 0, plus)
        own_lane = tl.reduce(tl.where(alive & is_own, lanes, LANES), 0, smaller)
        own_place = tl.reduce(tl.where(lanes == own_lane, places, 0), 0, plus)
        both = (own_lane < LANES).to(tl.int32) + 2 * tl.reduce((alive & (is_own == 0)).to(tl.int32), 0, larger)
        near = tl.reduce((alive & (kinds >= NEAR)).to(tl.int32), 0, larger)
        share = share_class(score, total)
        ids = tl.where(here, chosen, ids)
        sources = tl.where(here, tl.where(own_lane < LANES, (own_place + place < start).to(tl.int32), 2), sources)
        evidence = tl.where(here, evidence_row(size, share, support, hit_rate, both, near), evidence)
        contexts = tl.where(here, context_row(last, owner, size, share), contexts)
        own_rows = tl.where(here, token_row(chosen, owner, share), own_rows)
        drafted += (lane < LANES).to(tl.int32)
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
def evidence_row(size, share, support, hit_rate, origins, near):
    supported = (support > 1).to(tl.int32) + (support > 3).to(tl.int32)
    rate = (hit_rate >= LEVELS // 4).to(tl.int32) + (hit_rate >= LEVELS * 3 // 5).to(tl.int32)
    key = (size * SHARES + share) * SUPPORTS + supported
    return EVIDENCE + ((key * HIT_RATES + rate) * ORIGINS + origins) * 2 + near


@triton.jit
def context_row(last, owner, size, share):
    hashed = (mixed(mixed(owner, 0), last.to(tl.int64)) >> 4 & (HASHES - 1)).to(tl.int32)
    row = 3 * (hashed * COARSE + smaller(size // 2, COARSE - 1))
    return CONTEXTS + row + (share > 2).to(tl.int32) + (share > 5).to(tl.int32)


@triton.jit
def token_row(token, owner, share):
    hashed = (mixed(mixed(owner, 0), token.to(tl.int64)) >> 4 & (HASHES - 1)).to(tl.int32)
    return TOKENS + 2 * hashed + (share > 4).to(tl.int32)


@triton.jit
def confidence(table, figures, evidence, contexts, tokens, mask):
    hits, tries = counted(table, evidence, mask)
    seen = log_odds(figures, hits, tries)
    level = smaller(larger(probability(figures, seen), 20), LEVELS - 20)
    hits, tries = counted(table, contexts, mask)
    after = log_odds_after(figures, hits, tries, level)
    hits, tries = counted(table, tokens, mask)
    after += log_odds_after(figures, hits, tries, level)
    return probability(figures, (2 * seen + after) >> 2)


# -- learning --------------------------------------------------------------------------------------------------------


@triton.jit
def count(table, rows, hits, mask):
    mask = flags(mask)
    tl.atomic_add(table + 2 * rows, tl.where(hits, UNIT, 0), mask=mask, sem="relaxed")
    tl.atomic_add(table + 2 * rows + 1, tl.where(mask, UNIT, 0), mask=mask, sem="relaxed")


@triton.jit
def learn(facts, chain, voted, table, text, n, chain_length, COLUMNS: tl.constexpr):
    lanes, columns = tl.arange(0, LANES), tl.arange(0, COLUMNS)
    voted_for, base, hit_rate = tl.load(facts + VOTED_FOR), tl.load(facts + CHAIN_FOR), tl.load(facts + HIT_RATE)
    next_place, stop = tl.load(facts + CHAIN_NEXT), tl.load(facts + CHAIN_END)
    is_voted = (voted_for > 0) & (voted_for < n)
    first = tl.load(text + voted_for, mask=is_voted, other=-1)
    tokens, rows = tl.load(voted + lanes), tl.load(voted + LANES + lanes)
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
    is_held = (wrong >= number) & (next_place + number < stop)
    began = tl.where(wrong > 0, LEVELS, 0)
    tl.debug_barrier()
    tl.store(facts + VOTED_FOR, 0, mask=voted_for != n)
    tl.store(facts + HIT_RATE, hit_rate + ((began - hit_rate) * 51 >> 8), mask=is_chained & (next_place == 0))
    tl.store(facts + CHAIN_FOR, tl.where(is_chained & is_held, base + number, 0), mask=is_chained | (base > n))
    tl.store(facts + CHAIN_NEXT, next_place + smaller(wrong + 1, number), mask=is_chained)


@kernel
def halve_kernel(table, rows, BLOCK: tl.constexpr):
    """Halve a block of rows of counts."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    hits, tries = tl.load(table + 2 * row, mask=row < rows), tl.load(table + 2 * row + 1, mask=row < rows)
    mask = (row < rows) & (tries > tl.where(row < CONTEXTS, MOST_TRIES, MOST_TOKEN_TRIES))
    tl.store(table + 2 * row, hits >> 1, mask=mask)
    tl.store(table + 2 * row + 1, tries >> 1, mask=mask)


# -- requests --------------------------------------------------------------------------------------------------------


@kernel
def begin_kernel(facts, slots, generations, owners, starts, BLOCK: tl.constexpr):
    """Reset a slot."""
    k, columns = tl.program_id(0), tl.arange(0, BLOCK)
    generation, owner, start = tl.load(generations + k), tl.load(owners + k), tl.load(starts + k)
    values = tl.where(columns == GENERATION, generation, tl.where(columns == OWNER, owner, 0))
    values = tl.where(columns == START, start, tl.where(columns == HIT_RATE, LEVELS // 2, values))
    tl.store(facts + tl.load(slots + k).to(tl.int64) * FACTS + columns, values, mask=columns < FACTS)


@kernel
def remember_kernel(
    texts,
    texts_stride,
    slot,
    prompt,
    begin,
    end,
    owner,
    number,
    ring,
    owners,
    capacity,
    buckets,
    bucket_count,
    ring_end,
    BLOCK: tl.constexpr,
):
    """Enter a response, by one program."""
    base = tl.load(ring_end)
    entry = (owner * SPARED + number % (ENTRIES - SPARED)) % ENTRIES
    begin = larger(begin, end - capacity // 4)
    first = larger(prompt, begin - CONTEXT)
    text, length = texts + slot.to(tl.int64) * texts_stride + first, end - first
    size = tl.where(end > begin, (length + 2 + GRANULE - 1) // GRANULE * GRANULE, 0)
    for piece in range(0, size, BLOCK):
        k = piece + tl.arange(0, BLOCK)
        index = (base + k) & (capacity - 1)
        tl.store(ring + index, tl.load(text + k - 1, mask=(k > 0) & (k <= length), other=-1), mask=k < size)
        tl.store(owners + index // GRANULE, owner, mask=(k < size) & (k % GRANULE == 0))
        is_new = (k >= begin - first) & (k < length)
        long = bucket_of(text, tl.where(is_new, k, 0), owner, bucket_count, LONG_KEY)
        short = bucket_of(text, tl.where(is_new, k, 0), owner, bucket_count, SHORT_KEY)
        tl.atomic_max(buckets + long * ENTRIES + entry, base + 1 + k, mask=is_new & (long >= 0), sem="relaxed")
        entries = buckets + (bucket_count + short) * ENTRIES + entry
        tl.atomic_max(entries, base + 1 + k, mask=is_new & (short >= 0), sem="relaxed")
    tl.debug_barrier()
    tl.store(ring_end, base + size)


# -- launches --------------------------------------------------------------------------------------------------------


def scan(state: State, texts: Tensor, rows: Rows) -> None:
    """Launch; see `plain.scan`."""
    block, columns = at.BLOCK, triton.next_power_of_2(state.chain.shape[2])
    scan_kernel[(len(rows.slots), state.matches.shape[1])](
        *(*rows, texts, texts.stride(0), state.slots, state.chain, state.voted, state.counts, state.chain.shape[2]),
        *(state.matches, state.matches.stride(0)),
        COLUMNS=columns,
        BLOCK=block,
        num_warps=4,
    )


def draft(state: State, texts: Tensor, rows: Rows, drafts: Drafts, vocab_size: int) -> None:
    """Launch; see `plain.draft`."""
    draft_kernel[(len(rows.slots),)](
        *(*rows, texts, texts.stride(0), state.slots, state.chain, state.voted, state.counts, state.chain.shape[2]),
        *(state.ring, state.owners, state.ring.shape[0], state.buckets, state.buckets.shape[1], state.end),
        *(state.matches, state.matches.stride(0), state.matches.shape[1], state.figures),
        *(drafts.ids, drafts.ids.stride(0), drafts.confidence, drafts.sources, drafts.lengths),
        *(drafts.ids.shape[1], vocab_size),
        COLUMNS=triton.next_power_of_2(state.chain.shape[2]),
        num_warps=1,
    )


def halve(state: State) -> None:
    """Launch; see `plain.halve`."""
    rows = len(state.counts)
    halve_kernel[(triton.cdiv(rows, 1024),)](state.counts, rows, BLOCK=1024, num_warps=4)


def begin(state: State, slots: Tensor, generations: Tensor, owners: Tensor, starts: Tensor) -> None:
    """Launch; see `plain.begin`."""
    begin_kernel[(len(slots),)](state.slots, slots, generations, owners, starts, BLOCK=16, num_warps=1)


def remember(
    state: State, texts: Tensor, slot: int, prompt: int, begin: int, end: int, owner: int, number: int
) -> None:
    """Launch; see `plain.remember`."""
    remember_kernel[(1,)](
        *(texts, texts.stride(0), slot, prompt, begin, end, owner, number),
        *(state.ring, state.owners, state.ring.shape[0], state.buckets, state.buckets.shape[1], state.end),
        BLOCK=1024,
        num_warps=8,
    )
