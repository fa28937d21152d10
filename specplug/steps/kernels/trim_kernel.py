"""SurvivalTrimmer's `trim` of chains as one Triton kernel; the operations on tensors in `survival` are the reference.

One program holds one row per lane, and walks along the positions: survival is multiplied from left to right, which a
parallel scan would round otherwise.  Nothing is sorted: one walk counts the tokens of each level; from the counts
follow the levels in descending order, the best number of tokens and the lowest level among them; another walk keeps
these tokens.

Triton compiles the kernel at its first launch, which takes seconds; no argument is specialised for.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton import knobs

from specplug.types.plan import LEVELS, TrimLimits
from specplug.types.step import Draft

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs the kernel, on any device: Triton decides this where a kernel is defined."""

MAX_ROWS = MAX_TOKENS = 1024
"""Largest batch size and draft length that the kernel covers."""

# the interpreter runs no others fast
_plus = tl.standard._sum_combine
_larger = tl.standard._elementwise_max


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("batch_size", "draft_length", "ids_stride", "confidence_stride", "sources_stride", "out_stride"),
        "last_cost",
    ],
    do_not_specialize_on_alignment=[
        *("ids", "confidence", "sources", "lengths", "token_budget", "costs", "scratch"),
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
    costs,
    last_cost,
    scratch,
    batch_size,
    draft_length,
    out_ids,
    out_confidence,
    out_sources,
    out_stride,
    out_lengths,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Trim a batch; the arguments are fields of the draft, of the limits, and of the trimmed draft.

    `scratch` holds zeros, [LEVELS + batch_size * draft_length] int32.
    """
    row = tl.arange(0, BLOCK)
    is_row = row < batch_size
    length = tl.load(lengths + row, mask=is_row, other=0)
    levels = confidence + row * confidence_stride
    marks = scratch + LEVELS

    # Count the tokens of each level from 1 on, then those of this level or a higher one.
    survival = tl.full([BLOCK], 1.0, tl.float32)
    for place in range(0, draft_length):
        survival *= tl.load(levels + place, mask=place < length, other=0.0)
        level = (survival * LEVELS).to(tl.int32)
        tl.atomic_add(scratch + level - 1, 1, mask=level > 0)
    tl.debug_barrier()
    number = tl.arange(0, LEVELS)
    count = tl.load(scratch + number)
    above = tl.reduce(count, 0, _plus) - tl.associative_scan(count, 0, _plus)  # tokens above level `number + 1`
    count += above
    limit = tl.minimum(tl.reduce(length, 0, _plus), tl.load(token_budget)).to(tl.int32)

    # The n-th level in descending order is the number of levels that at least n tokens reach: all but those marked
    # before n.  Find the smallest n with the greatest gain.
    tl.atomic_add(marks + count, 1, mask=count < batch_size * draft_length)
    tl.debug_barrier()
    passed = tl.full([], 0, tl.int32)
    total = tl.load(costs)
    best = tl.full([], 0, tl.int64)
    left = tl.full([], 0, tl.int32)
    lowest = tl.full([], LEVELS, tl.int32)
    for start in range(0, limit, BLOCK):
        index = start + row
        inside = index < limit
        mark = tl.load(marks + index, mask=inside, other=0)
        level = tl.where(inside, LEVELS - passed - tl.associative_scan(mark, 0, _plus), 0)
        gain = total + tl.associative_scan(level.to(tl.int64), 0, _plus)
        gain -= tl.load(costs + tl.minimum(index + 1, last_cost))
        gain = tl.where(inside, gain, 0)
        highest = tl.reduce(gain, 0, _larger)
        first = -tl.reduce(tl.where(inside & (gain == highest), -index, -limit), 0, _larger)
        is_better = highest > best
        left = tl.where(is_better, first + 1, left)
        lowest = tl.where(is_better, tl.reduce(tl.where(index == first, level, 0), 0, _plus), lowest)
        best = tl.maximum(best, highest)
        passed += tl.reduce(mark, 0, _plus)
        total += tl.reduce(level.to(tl.int64), 0, _plus)

    # Keep the tokens above the lowest level, and of those at it as many as are left, column by column.
    left -= tl.reduce(tl.where(number == lowest, count, 0), 0, _plus)
    survival = tl.full([BLOCK], 1.0, tl.float32)
    kept = tl.full([BLOCK], 0, tl.int32)
    for place in range(0, draft_length):
        survival *= tl.load(levels + place, mask=place < length, other=0.0)
        level = tl.where(place < length, (survival * LEVELS).to(tl.int32), -1)
        tie = (level == lowest).to(tl.int32)
        is_kept = (level > lowest) | ((tie > 0) & (tl.associative_scan(tie, 0, _plus) <= left))
        left -= tl.reduce(tie, 0, _plus)
        kept += is_kept.to(tl.int32)
        out = row * out_stride + place
        token = tl.load(ids + row * ids_stride + place, mask=is_kept, other=-1)
        source = tl.load(sources + row * sources_stride + place, mask=is_kept, other=-1)
        tl.store(out_ids + out, token, mask=is_row)
        tl.store(out_sources + out, source, mask=is_row)
        tl.store(out_confidence + out, tl.load(levels + place, mask=is_kept, other=0.0), mask=is_row)
    tl.store(out_lengths + row, kept, mask=is_row)


def covers(draft: Draft) -> bool:
    """Return whether the kernel can trim a draft: chains, not too many or too long, of contiguous rows."""
    rows, columns = draft.token_ids.shape
    is_small = rows <= MAX_ROWS and columns <= MAX_TOKENS
    are_contiguous = all(it.stride(1) == 1 for it in (draft.token_ids, draft.confidence, draft.source))
    return draft.parents is None and is_small and are_contiguous


def trim(draft: Draft, limits: TrimLimits) -> Draft:
    """Return `draft`, which the kernel `covers`, cut to the tokens to verify, as a new one-hot draft."""
    shape = rows, draft_length = draft.token_ids.shape
    ids, sources = torch.empty(2, *shape, dtype=torch.int32, device=draft.device)
    confidence = torch.empty(shape, device=draft.device)
    lengths = torch.empty_like(draft.lengths)
    trim_kernel[(1,)](
        *(draft.token_ids, draft.token_ids.stride(0), draft.confidence, draft.confidence.stride(0)),
        *(draft.source, draft.source.stride(0), draft.lengths.contiguous()),
        *(limits.token_budget, limits.costs.contiguous(), limits.costs.numel() - 1),
        torch.zeros(LEVELS + rows * draft_length, dtype=torch.int32, device=draft.device),
        *(rows, draft_length, ids, confidence, sources, draft_length, lengths),
        LEVELS=LEVELS,
        BLOCK=triton.next_power_of_2(max(rows, 1)) if INTERPRETED else MAX_ROWS,
        num_warps=8,
    )
    return replace(draft.as_one_hot(), token_ids=ids, confidence=confidence, source=sources, lengths=lengths)
