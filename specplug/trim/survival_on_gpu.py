"""SurvivalTrimmer's `trim` of chains as one Triton kernel; the operations on tensors in `survival` are the reference.

One program holds one row per lane, and walks along the positions: survival is multiplied from left to right, which a
parallel scan would round otherwise.  Nothing is sorted: the lowest admitted survival is found by bisection over the
bits of non-negative floats, which are in the order of their values.  Each round walks again, and counts the tokens
above, because a walk over memory in the cache is cheaper than holding all products.

Triton compiles the kernel at its first launch, which takes about a second; no argument is specialised for.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton import knobs

from specplug.types.draft import Draft
from specplug.types.plan import TrimLimits

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs the kernel, on any device: Triton decides this where a kernel is defined."""

MOST_ROWS = MOST_TOKENS = 1024
"""Largest batch size and draft length that the kernel covers."""


@triton.jit  # type: ignore[untyped-decorator]
def _plus(one, other):  # type: ignore[no-untyped-def]
    return one + other


@triton.jit  # type: ignore[untyped-decorator]
def _count_above(bits, confidence, length, draft_length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return, per row, the number of tokens whose survival has bits above `bits`; `confidence` points at the rows."""
    survival = tl.full([BLOCK], 1.0, tl.float32)
    count = tl.full([BLOCK], 0, tl.int32)
    for place in range(0, draft_length):
        is_token = place < length
        survival *= tl.load(confidence + place, mask=is_token, other=0.0)
        survival = tl.where(survival > 0.0, survival, 0.0)  # not -0.0, whose bits are out of order
        count += (is_token & (survival.to(tl.int32, bitcast=True) > bits)).to(tl.int32)
    return count


@triton.jit  # type: ignore[untyped-decorator]
def _most_tokens(bits, token_budget, prices, prices_after, num_prices):  # type: ignore[no-untyped-def]
    """Return what `ranking.most_tokens` does for the survival probability of these bits."""
    survival = bits.to(tl.float32, bitcast=True)
    most = tl.load(token_budget)
    for place in range(0, num_prices):
        after = tl.load(prices_after + place)
        most = tl.where(survival < tl.load(prices + place), tl.minimum(most, after), most)
    return tl.minimum(most, 1 << 30).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _next_ties(place, row, batch_size, first, end):  # type: ignore[no-untyped-def]
    """Return, per row, the end of the ties among the first `place` places, column by column, of the batch.

    A row's ties are at `first` to `end`.  Of the places before `place`, a row has those in the columns below a bound.
    """
    bound = (place - row + batch_size - 1) // tl.maximum(batch_size, 1)
    return tl.minimum(tl.maximum(bound, first), end)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("batch_size", "draft_length", "ids_stride", "confidence_stride", "sources_stride", "out_stride"),
        *("num_prices", "entry"),
    ],
    do_not_specialize_on_alignment=[
        *("ids", "confidence", "sources", "lengths", "token_budget", "prices", "prices_after"),
        *("out_ids", "out_confidence", "out_sources", "out_lengths"),
    ],
)
def trim_kernel(  # type: ignore[no-untyped-def]
    ids,
    ids_stride,
    confidence,
    confidence_stride,
    sources,
    sources_stride,
    lengths,
    token_budget,
    prices,
    prices_after,
    num_prices,
    entry,
    batch_size,
    draft_length,
    out_ids,
    out_confidence,
    out_sources,
    out_stride,
    out_lengths,
    BLOCK: tl.constexpr,
):
    """Trim a batch; the arguments are fields of the draft, of the limits, and of the trimmed draft."""
    row = tl.arange(0, BLOCK)
    is_row = row < batch_size
    length = tl.load(lengths + row, mask=is_row, other=0)
    levels = confidence + row * confidence_stride

    # The lowest bits, from those of 0 to one more than those of 1, whose tokens are admitted: 30 halvings.
    low, high = tl.full([], 0, tl.int32), tl.full([], 0x3F800001, tl.int32)
    for _ in range(30):
        middle = (low + high) // 2
        above = tl.reduce(_count_above(middle, levels, length, draft_length, BLOCK), 0, _plus)
        admits = above < _most_tokens(middle, token_budget, prices, prices_after, num_prices)
        high = tl.where(admits, middle, high)
        low = tl.where(admits, low, tl.minimum(middle + 1, high))

    # Of the tokens that are equal to it, as many as there may be, column by column.
    first = _count_above(high, levels, length, draft_length, BLOCK)
    end = _count_above(high - 1, levels, length, draft_length, BLOCK)
    left = _most_tokens(high, token_budget, prices, prices_after, num_prices) - tl.reduce(first, 0, _plus)
    low, high = tl.full([], 0, tl.int32), batch_size * draft_length
    for _ in range(21):
        middle = (low + high + 1) // 2
        ties = tl.reduce(_next_ties(middle, row, batch_size, first, end) - first, 0, _plus)
        low = tl.where(ties <= left, middle, low)
        high = tl.where(ties <= left, high, tl.maximum(middle - 1, low))
    kept = _next_ties(low, row, batch_size, first, end)

    # None, if the admitted tokens do not yield the entry beyond their prices.
    survival, gain = tl.full([BLOCK], 1.0, tl.float32), tl.full([BLOCK], 0.0, tl.float32)
    for place in range(0, draft_length):
        survival *= tl.load(levels + place, mask=place < kept, other=0.0)
        gain += survival
    total, count, before = tl.reduce(gain, 0, _plus), tl.reduce(kept, 0, _plus), tl.full([], 0.0, tl.float32)
    for place in range(0, num_prices):
        price = tl.load(prices + place)
        further = tl.maximum(count - tl.load(prices_after + place), 0).to(tl.float32)
        total -= (price - before) * further
        before = price
    kept = tl.where((entry > 0.0) & (total < entry), 0, kept)  # without one, rounding must not decide

    tl.store(out_lengths + row, kept, mask=is_row)
    for place in range(0, draft_length):
        is_kept, out = place < kept, row * out_stride + place
        token = tl.load(ids + row * ids_stride + place, mask=is_kept, other=-1)
        source = tl.load(sources + row * sources_stride + place, mask=is_kept, other=-1)
        level = tl.load(levels + place, mask=is_kept, other=0.0)
        tl.store(out_ids + out, token, mask=is_row)
        tl.store(out_sources + out, source, mask=is_row)
        tl.store(out_confidence + out, level, mask=is_row)


def warm_up(device: torch.device) -> None:
    """Compile the kernel, or load it from Triton's cache."""
    draft = Draft.allocate(0, 1, device=device)
    trim(draft, TrimLimits.build(0, draft.lengths > 0))


def covers(draft: Draft) -> bool:
    """Return whether the kernel can trim a draft: chains, not too many or too long, of contiguous rows."""
    rows, columns = draft.token_ids.shape
    is_small = rows <= MOST_ROWS and columns <= MOST_TOKENS
    are_contiguous = all(it.stride(1) == 1 for it in (draft.token_ids, draft.confidence, draft.source))
    return draft.parents is None and is_small and are_contiguous


def trim(draft: Draft, limits: TrimLimits) -> Draft:
    """Return `draft`, which the kernel `covers`, cut to the budget and the prices, as a new one-hot draft."""
    shape = rows, draft_length = draft.token_ids.shape
    ids, sources = torch.empty(2, *shape, dtype=torch.int32, device=draft.device)
    confidence, lengths = torch.empty(shape, device=draft.device), torch.empty_like(draft.lengths)
    trim_kernel[(1,)](
        draft.token_ids,
        draft.token_ids.stride(0),
        draft.confidence,
        draft.confidence.stride(0),
        draft.source,
        draft.source.stride(0),
        draft.lengths.contiguous(),
        limits.token_budget,
        limits.prices.contiguous(),
        limits.prices_after.contiguous(),
        limits.prices.numel(),
        limits.entry,
        rows,
        draft_length,
        ids,
        confidence,
        sources,
        draft_length,
        lengths,
        BLOCK=triton.next_power_of_2(max(rows, 1)) if INTERPRETED else MOST_ROWS,
        num_warps=8,
    )
    return replace(draft.as_one_hot(), token_ids=ids, confidence=confidence, source=sources, lengths=lengths)
