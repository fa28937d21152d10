"""The operations of `benchmarks.gpu.suffix` as Triton kernels; `benchmarks.gpu.suffix_reference` is their reference."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from benchmarks.gpu import suffix
from benchmarks.gpu.scan_kernels import BLOCK, larger, match_kernel, match_lengths
from benchmarks.gpu.suffix import SuffixDrafts

LONGEST = tl.constexpr(suffix.LONGEST)
SLOTS = tl.constexpr(suffix.SLOTS)
MULTIPLIER = tl.constexpr(suffix.MULTIPLIER)
LENGTH_BUCKETS = tl.constexpr(suffix.LENGTH_BUCKETS)
LONG_KEY, SHORT_KEY = (tl.constexpr(tokens) for tokens in suffix.KEYS)


@triton.jit
def plus(a, b):
    """Return the sum."""
    return a + b


@triton.jit
def bucket_of(text, end, buckets, KEY: tl.constexpr):
    """Return the bucket of the KEY tokens before `end`."""
    mixed = end.to(tl.int64) * 0
    for distance in tl.static_range(KEY):
        token = tl.load(text + end - 1 - distance, mask=end > distance, other=0)
        mixed = (mixed ^ token.to(tl.int64)) * MULTIPLIER
    return (mixed >> 32) & (buckets - 1)


@triton.jit(do_not_specialize=["head", "number", "length"])
def enter_kernel(response, length, head, number, ring, tables, buckets, BLOCK: tl.constexpr):
    """Write a block of a response to the ring, and its entries to the tables."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = places < length
    tokens = tl.load(response + places, mask=is_token, other=-1)
    tl.store(ring + head + places, tokens, mask=places <= length)
    entries = (number.to(tl.int64) << 32) + head + places
    slot = number % SLOTS
    long = bucket_of(response, places, buckets, LONG_KEY) * SLOTS + slot
    tl.atomic_max(tables + long, entries, mask=is_token & (places >= LONG_KEY))
    short = (buckets + bucket_of(response, places, buckets, SHORT_KEY)) * SLOTS + slot
    tl.atomic_max(tables + short, entries, mask=is_token & (places >= SHORT_KEY))


@triton.jit(do_not_specialize=["draft_length"])
def learn_kernel(slots, num_sampled, best, last, counts, draft_length, BLOCK: tl.constexpr):
    """Count a row's last draft by its verdict, and forget the row's match."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    tl.store(best + row, tl.full([], 0, tl.int64))
    sampled = tl.load(num_sampled + row)
    kind, drafted = tl.load(last + 2 * slot), tl.load(last + 2 * slot + 1)
    positions = tl.arange(0, BLOCK)
    places = counts + 2 * (kind * draft_length + positions)
    is_observed = positions < tl.minimum(sampled, drafted)
    one = tl.full([BLOCK], 1, tl.int32)
    tl.atomic_add(places, one, mask=is_observed & (positions < sampled - 1))
    tl.atomic_add(places + 1, one, mask=is_observed)


@triton.jit
def candidates_of(text, length, ring, tables, buckets):
    """Return the entries, [2 * SLOTS] int64, and the lengths of their matches; 0 for those that do not count."""
    places = tl.arange(0, 2 * SLOTS)
    is_long = places < SLOTS
    bucket = tl.where(
        is_long,
        bucket_of(text, length, buckets, LONG_KEY),
        buckets + bucket_of(text, length, buckets, SHORT_KEY),
    )
    entries = tl.load(tables + bucket * SLOTS + places % SLOTS)
    indices = entries & 0xFFFFFFFF
    is_valid = entries >= 0
    is_valid = is_valid & (tl.load(ring + indices, mask=is_valid, other=-1) >= 0)
    lengths = match_lengths(text, length, ring, indices, is_valid, LONGEST)
    lengths = tl.where(lengths >= tl.where(is_long, LONG_KEY, SHORT_KEY), lengths, 0)
    is_same = (indices[:, None] == indices[None, :]) & (lengths[None, :] > 0) & (places[None, :] < places[:, None])
    return entries, tl.where(tl.reduce(is_same.to(tl.int32), 1, larger) > 0, 0, lengths)


@triton.jit
def vote(entries, lengths, ring, capacity, draft_length, BLOCK: tl.constexpr):
    """Return the tokens, [BLOCK] int32 with -1 after the last, and the length of the chain with the best score.

    Row i of each matrix is the chain for which the candidates vote whose matches are at least as long as that of i.
    """
    indices, columns = entries & 0xFFFFFFFF, tl.arange(0, BLOCK)
    is_live = (lengths[None, :] >= lengths[:, None]) & (lengths[:, None] > 0)
    chains = tl.full([2 * SLOTS, BLOCK], -1, tl.int32)
    product, score = tl.full([2 * SLOTS], 1.0, tl.float32), tl.full([2 * SLOTS], 0.0, tl.float32)
    for position in range(draft_length):
        has_token = (lengths > 0) & (indices + position < capacity)
        tokens = tl.load(ring + indices + position, mask=has_token, other=-1)
        alive = tl.reduce(is_live.to(tl.int32), 1, plus)
        is_live = is_live & (tokens >= 0)[None, :]
        votes = tl.dot(is_live.to(tl.float16), (tokens[:, None] == tokens[None, :]).to(tl.float16))
        votes = tl.where(is_live, votes.to(tl.int32), 0)
        most = tl.reduce(votes, 1, larger)
        is_chosen = is_live & (votes == most[:, None])
        newest = tl.reduce(tl.where(is_chosen, entries[None, :], -1), 1, larger)
        is_chosen = is_chosen & (entries[None, :] == newest[:, None])
        token = tl.reduce(tl.where(is_chosen, tokens[None, :], -1), 1, larger)
        # Divided last: neither a fused operation nor an approximate division may round in another way.
        product = tl.div_rn(product * most.to(tl.float32), tl.where(alive > 0, alive, 1).to(tl.float32))
        score += product
        is_live = is_live & (tokens[None, :] == token[:, None])
        chains = tl.where(columns[None, :] == position, token[:, None], chains)
    is_best = score == tl.reduce(score, 0, larger)
    length = tl.reduce(tl.where(is_best, lengths, 0), 0, larger)
    is_best = is_best & (lengths == length)  # candidates of one length have one chain
    return tl.reduce(tl.where(is_best[:, None], chains, -1), 0, larger), length


@triton.jit(do_not_specialize=["draft_length", "capacity"])
def draft_kernel(
    slots,
    lengths,
    texts,
    texts_stride,
    best,
    ring,
    capacity,
    tables,
    buckets,
    last,
    counts,
    out,
    out_stride,
    confidence,
    confidence_stride,
    draft_length,
    BLOCK: tl.constexpr,
):
    """Write a row's draft and its confidence, from its own match or the corpus."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(lengths + slot)
    text = texts + slot * texts_stride
    key = tl.load(best + row)
    matched, end = (key >> 32).to(tl.int32), (key & 0xFFFFFFFF).to(tl.int32)
    columns = tl.arange(0, BLOCK)
    available = tl.where(matched > 0, tl.minimum(length - end, draft_length), 0)
    tokens = tl.load(text + end + columns, mask=columns < available, other=-1)
    source = tl.full([], 0, tl.int32)
    entries, found = candidates_of(text, length, ring, tables, buckets)
    if tl.reduce(found, 0, larger) > matched:
        chain, chain_matched = vote(entries, found, ring, capacity, draft_length, BLOCK)
        is_longer = chain_matched > matched
        tokens = tl.where(is_longer, chain, tokens)
        matched = tl.where(is_longer, chain_matched, matched)
        source = is_longer.to(tl.int32)
    is_drafted = tokens >= 0
    padded = tl.where(is_drafted, tokens, tl.load(text + length - 1)).to(tl.int64)
    tl.store(out + row * out_stride + columns, padded, mask=columns < draft_length)
    over = (matched > 6).to(tl.int32) + (matched > 10).to(tl.int32) + (matched > 20).to(tl.int32)
    kind = source * LENGTH_BUCKETS + tl.maximum(1, tl.minimum(matched, 6)) - 1 + over
    tl.store(last + 2 * slot, kind)
    tl.store(last + 2 * slot + 1, tl.reduce(is_drafted.to(tl.int32), 0, plus))
    places = counts + 2 * (kind * draft_length + columns)
    accepted, observed = tl.load(places, mask=is_drafted, other=0), tl.load(places + 1, mask=is_drafted, other=0)
    rates = tl.div_rn((accepted + 1).to(tl.float32), (observed + 2).to(tl.float32))
    rates = tl.where(is_drafted, rates, 0.0)
    tl.store(confidence + row * confidence_stride + columns, rates, mask=columns < draft_length)


def enter(response: Tensor, head: int, number: int, ring: Tensor, tables: Tensor) -> None:
    """Write a response to the ring from `head` on, and its entries to the tables."""
    block = 256
    programs = triton.cdiv(len(response) + 1, block)
    enter_kernel[(programs,)](
        response.contiguous(), len(response), head, number, ring, tables, tables.shape[1], BLOCK=block
    )


def learn(slots: Tensor, num_sampled: Tensor, drafts: SuffixDrafts) -> None:
    """Count the rows' last drafts by their verdicts."""
    length = drafts.counts.shape[1]
    block = triton.next_power_of_2(length)
    learn_kernel[(len(slots),)](
        *(slots.contiguous(), num_sampled.contiguous(), drafts.best, drafts.last, drafts.counts, length),
        BLOCK=block,
        num_warps=1,
    )


def draft(slots: Tensor, lengths: Tensor, texts: Tensor, drafts: SuffixDrafts, out: Tensor, confidence: Tensor) -> None:
    """Find the rows' own matches, and draft; `learn` comes before."""
    rows, draft_length = out.shape
    slots, lengths, stride, corpus = slots.contiguous(), lengths.contiguous(), texts.stride(0), drafts.corpus
    blocks = triton.cdiv(texts.shape[1], BLOCK)
    match_kernel[(rows, blocks)](slots, lengths, texts, stride, drafts.best, 1, suffix.LONGEST, BLOCK)
    draft_kernel[(rows,)](
        *(slots, lengths, texts, stride, drafts.best, corpus.ring, len(corpus.ring), corpus.tables),
        *(corpus.tables.shape[1], drafts.last, drafts.counts, out, out.stride(0), confidence, confidence.stride(0)),
        draft_length,
        BLOCK=triton.next_power_of_2(draft_length),
        num_warps=1,
    )
