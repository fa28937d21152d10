"""A step's new tokens in kernels: ingested, learnt from, and matched; `plain` and `learning` say what each does."""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup import counts as of
from specplug.lookup import layout as at
from specplug.lookup.kernel_arithmetic import count, flags, kernel, larger, plus, smaller
from specplug.lookup.memory_kernels import share

FIRST_ROW, END_ROW = map(tl.constexpr, (at.CHAIN_EVIDENCE, at.CHAIN_OWN + 1))
"""The rows of a chain that are rows of counts."""


@kernel
def ingest_kernel(
    slots, generations, texts, texts_stride, capacity, lengths, facts, chain, voted, counts, chain_length, ring, owners,
    buckets, ring_end, ring_capacity, table, table_stride, table_rows, firsts, num_new, learns, begin,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BEGIN: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Begin a row by `BEGIN`, if the step has one, copy its new tokens, and learn from them."""
    row = tl.program_id(0)
    if BEGIN is not None:
        BEGIN(begin, row, SIZES)
        tl.debug_barrier()  # what it has stored is read here
    slot = tl.load(slots + row).to(tl.int64)
    facts = facts + slot * at.FACTS
    text = texts + slot * texts_stride
    if tl.load(facts + at.GENERATION) == tl.load(generations + row):
        start = tl.load(facts + at.START)
        length = tl.load(lengths + row)
        has_room = start + length <= capacity
        end = tl.where(has_room, start + length, start)
        first = tl.where(has_room, end - tl.load(num_new + row), start)
        line = table + tl.load(table_rows + row) * table_stride - start - tl.load(firsts + row)
        copy(facts, text, line, first, end, BLOCK)
        tl.debug_barrier()
        if learns > 0:
            own_chain = chain + slot * at.CHAIN_ROWS * chain_length
            own_votes = voted + slot * 2 * at.CANDIDATES
            learn(facts, own_chain, own_votes, counts, text, end, chain_length, COLUMNS)
            if tl.load(facts + at.GROUP) > 0:
                share(facts, (ring, owners, ring_capacity, tl.load(ring_end)), buckets, text, end, 64)


@triton.jit
def copy(facts, text, line, begin, end, BLOCK: tl.constexpr):
    """Copy the tokens from `begin` to `end` of a line to a text."""
    known = tl.load(facts + at.END)
    drafted = tl.load(facts + at.ENGINE)
    written = tl.load(facts + at.WRITTEN)
    k = begin + tl.arange(0, BLOCK)
    tokens = tl.load(line + k, mask=k < end, other=-1)
    is_compared = (k < end) & (k < begin + drafted)
    is_other = is_compared & (tl.load(text + k, mask=is_compared, other=-1) != tokens)
    is_unlike = (begin != known) | (tl.reduce(is_other.to(tl.int32), 0, larger) > 0)
    tl.debug_barrier()
    for piece in range(known, begin, BLOCK):
        gap = piece + tl.arange(0, BLOCK)
        tl.store(text + gap, -1, mask=gap < begin)
    tl.store(text + k, tokens, mask=k < end)
    for piece in range(begin + BLOCK, end, BLOCK):
        k = piece + tl.arange(0, BLOCK)
        tl.store(text + k, tl.load(line + k, mask=k < end), mask=k < end)
    tl.store(facts + at.VOTED_FOR, 0, mask=is_unlike)
    tl.store(facts + at.CHAIN_FOR, 0, mask=begin != known)
    tl.store(facts + at.WRITTEN, smaller(written, begin), mask=begin < known)
    anchors = tl.arange(0, at.FACTS - at.ANCHORS)
    tl.store(facts + at.ANCHORS + anchors, 0, mask=anchors < tl.where(begin < known, at.FACTS - at.ANCHORS, 0))
    tl.store(facts + at.END, end)
    tl.store(facts + at.ENGINE, 0)


@kernel
def scan_kernel(
    slots, generations, limits, texts, texts_stride, facts, matches, matches_stride, kept, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the `kept` best matches in a block of a row's text."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    limit = tl.load(limits + row)
    facts = facts + slot * at.FACTS
    n = tl.load(facts + at.END)
    end = n + tl.load(facts + at.ENGINE)
    is_current = tl.load(facts + at.GENERATION) == tl.load(generations + row)
    matches = matches + row * matches_stride + block * kept
    if is_current & (limit > 0) & (n > 0) & (block * BLOCK < end - 1):
        places = block * BLOCK + 1 + tl.arange(0, BLOCK)
        found = match_lengths(texts + slot * texts_stride, end, places).to(tl.int64)
        found = tl.where(found > 0, (found << 32) + places, 0)
        for k in range(kept):
            best = tl.reduce(found, 0, larger)
            tl.store(matches + k, best)
            found = tl.where(found == best, 0, found)
    else:
        for k in range(kept):
            tl.store(matches + k, tl.full([], 0, tl.int64))


@triton.jit
def match_lengths(text, n, places):
    """Return how many tokens before each place match the text's end; a block ends where no place is left."""
    found = places * 0
    is_equal = places < n
    distance = 1
    while (distance <= at.LONGEST) & (tl.reduce(is_equal.to(tl.int32), 0, larger) > 0):
        for _ in tl.static_range(4):
            wanted = tl.load(text + n - distance, mask=n >= distance, other=-1)
            mask = flags(is_equal & (places >= distance) & (wanted >= 0))
            is_equal = mask & (tl.load(text + places - distance, mask=mask, other=-1) == wanted)
            found += is_equal.to(tl.int32)
            distance += 1
    return found


@triton.jit
def learn(facts, chain, voted, counts, text, n, chain_length, COLUMNS: tl.constexpr):
    each = tl.arange(0, at.CANDIDATES)
    columns = tl.arange(0, COLUMNS)
    voted_for = tl.load(facts + at.VOTED_FOR)
    base = tl.load(facts + at.CHAIN_FOR)
    hit_rate = tl.load(facts + at.HIT_RATE)
    node = tl.load(facts + at.CHAIN_NEXT) - 1
    stop = tl.load(facts + at.CHAIN_END)
    is_voted = (voted_for > 0) & (voted_for < n)
    first = tl.load(text + voted_for, mask=is_voted, other=-1)
    tokens = tl.load(voted + each)
    rows = tl.load(voted + at.CANDIDATES + each)
    count(counts, rows, tokens == first, is_voted & (tokens >= 0))
    is_chained = (base > 0) & (base < n)
    inside = flags(is_chained & (columns < stop))
    tokens = tl.load(chain + columns, mask=inside, other=-1)
    parents = tl.load(chain + at.CHAIN_PARENT * chain_length + columns, mask=inside, other=-2)
    emitted = tl.load(text + base + columns, mask=flags(is_chained & (base + columns < n)), other=-1)
    is_first = (node < 0) & (tl.load(chain + at.CHAIN_EVIDENCE * chain_length) < of.TOKENS_END)
    judged = columns < 0
    hits = columns < 0
    is_right = is_chained.to(tl.int32)
    number = n * 0
    while (is_right > 0) & (base + number < n):
        after = inside & (parents == node)
        is_hit = after & (tokens == tl.reduce(tl.where(columns == number, emitted, 0), 0, plus))
        judged = judged | after
        hits = hits | is_hit
        found = tl.reduce(tl.where(is_hit, columns, COLUMNS), 0, smaller)
        is_right = (found < COLUMNS).to(tl.int32)
        node = tl.where(is_right > 0, found, node)
        number += 1
    for kind in tl.static_range(FIRST_ROW, END_ROW):
        rows = tl.load(chain + kind * chain_length + columns, mask=judged, other=-1)
        count(counts, rows, hits, judged & (rows >= 0))
    hit_rate += (tl.where(node >= 0, at.LEVELS, 0) - hit_rate) * 51 >> 8
    is_open = (is_right > 0) & (tl.reduce((inside & (parents == node)).to(tl.int32), 0, larger) > 0)
    tl.debug_barrier()
    tl.store(facts + at.VOTED_FOR, 0, mask=voted_for != n)
    tl.store(facts + at.HIT_RATE, hit_rate, mask=is_chained & is_first)
    tl.store(facts + at.CHAIN_FOR, tl.where(is_chained & is_open, n, 0), mask=is_chained | (base > n))
    tl.store(facts + at.CHAIN_NEXT, node + 1, mask=is_chained)
