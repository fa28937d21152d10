"""The ring of responses and of what siblings share, in kernels.

`plain`, `candidates` and `learning` say what each function does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup import layout as at
from specplug.lookup.kernel_arithmetic import (
    LONG_KEY,
    SHORT_KEY,
    SHORTEST_KEY,
    bucket_of,
    flags,
    kernel,
    larger,
    smaller,
)


@triton.jit
def ring_token(memory, owner, places, mask):
    """Return tokens of the ring; the owner is compared before any is read."""
    ring, owners, capacity, end, _ = memory
    index = places & (capacity - 1)
    mask = flags(mask & (places >= 0) & (places >= end - capacity) & (places < end))
    mask = mask & (tl.load(owners + index // at.GRANULE, mask=mask, other=0) == owner)
    return tl.load(ring + index, mask=mask, other=-1)


@triton.jit
def ring_match(memory, owner, text, n, places, mask):
    """Return how many tokens before each of the places match the text's end, in pieces of 16."""
    found = places * 0
    columns = tl.arange(0, 16)
    for first in range(0, at.LONGEST, 16):
        if tl.reduce(mask.to(tl.int32), 0, larger) > 0:
            distance = first + 1 + columns
            wanted = tl.load(text + n - distance, mask=n >= distance, other=-1)
            there = places[:, None] - distance[None, :]
            tokens = ring_token(memory, owner[:, None], there, mask[:, None] & (wanted >= 0)[None, :])
            is_other = (tokens < 0) | (tokens != wanted[None, :])
            equal = tl.reduce(tl.where(is_other, columns[None, :], 16), 1, smaller)
            found += tl.where(mask, equal, 0)
            mask = mask & (equal == 16)
    return found


@triton.jit
def share(facts, memory, buckets, text, n, PIECE: tl.constexpr):
    ring, _, capacity, end = memory
    group = tl.load(facts + at.GROUP)
    prompt = tl.load(facts + at.PROMPT)
    span = tl.load(facts + at.SPAN)
    written = tl.load(facts + at.WRITTEN)
    entry = tl.load(facts + at.ENTRY)
    first = larger(tl.load(facts + at.START), prompt - at.CONTEXT)
    shift = span + 1 - first
    stop = tl.where(span >= end - capacity, smaller(n, tl.load(facts + at.SPAN_END) - shift), 0)
    for piece in range(larger(written, first), stop, PIECE):
        k = piece + tl.arange(0, PIECE)
        tl.store(ring + ((k + shift) & (capacity - 1)), tl.load(text + k, mask=k < stop), mask=k < stop)
        is_shared = (k >= prompt) & (k < stop)
        bucket = bucket_of(text, tl.where(is_shared, k, 0), group, capacity // 4, LONG_KEY)
        tl.atomic_max(buckets + bucket * at.ENTRIES + entry, k + shift, mask=bucket >= 0, sem="relaxed")
    tl.debug_barrier()
    tl.store(facts + at.WRITTEN, larger(written, n))


@kernel
def remember_kernel(
    texts, texts_stride, slot, prompt, begin, end, owner, number, facts, ring, owners, buckets, ring_end, capacity,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Enter a response, by one program."""
    base = tl.load(ring_end)
    quarter = capacity // 4
    end = smaller(end, tl.load(facts + slot.to(tl.int64) * at.FACTS + at.END))
    entry = (owner * at.SPARED + number % at.USED) % at.ENTRIES
    begin = larger(begin, end - quarter)
    first = larger(prompt, begin - at.CONTEXT)
    text = texts + slot.to(tl.int64) * texts_stride + first
    length = end - first
    size = tl.where(end > begin, (length + 2 + at.GRANULE - 1) // at.GRANULE * at.GRANULE, 0)
    for piece in range(0, size, BLOCK):
        k = piece + tl.arange(0, BLOCK)
        index = (base + k) & (capacity - 1)
        tl.store(ring + index, tl.load(text + k - 1, mask=(k > 0) & (k <= length), other=-1), mask=k < size)
        tl.store(owners + index // at.GRANULE, owner, mask=(k < size) & (k % at.GRANULE == 0))
        # no key ends before token 0
        places = base + 1 + k
        k = tl.where((k >= begin - first) & (k < length), k, 0)
        long = bucket_of(text, k, owner, quarter, LONG_KEY)
        short = bucket_of(text, k, owner, quarter, SHORT_KEY)
        tl.atomic_max(buckets + long * at.ENTRIES + entry, places, mask=long >= 0, sem="relaxed")
        tl.atomic_max(buckets + (quarter + short) * at.ENTRIES + entry, places, mask=short >= 0, sem="relaxed")
        shortest = bucket_of(text, k, owner, quarter, SHORTEST_KEY)
        tl.atomic_max(buckets + (quarter + shortest) * at.ENTRIES + entry, places, mask=shortest >= 0, sem="relaxed")
    tl.debug_barrier()
    tl.store(ring_end, base + size)
