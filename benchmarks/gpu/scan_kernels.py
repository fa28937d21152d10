"""The scan of `benchmarks.gpu.scan` as two Triton kernels: one finds each row's match, one copies what followed it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from benchmarks.gpu.scan import LONGEST, SHORTEST

BLOCK = 2048
"""Tokens that one program scans."""


@triton.jit
def larger(a, b):
    """Return the larger number, like Triton's own `tl.max`, which its interpreter does not run in every process."""
    return tl.where(a > b, a, b)


@triton.jit
def match_lengths(text, length, other, ends, is_equal, LONGEST: tl.constexpr):
    """Return how many tokens before each of `ends` in `other` equal the text's last ones, int32, at most LONGEST.

    It is 0 where not `is_equal`.  A block ends early where no place is left, as most do after some tokens.  Nothing
    equals what is before the beginning of either: there may be -1 in `other`.
    """
    counts = is_equal.to(tl.int32) * 0
    for first in tl.static_range(0, LONGEST, 4):
        if tl.reduce(is_equal.to(tl.int32), 0, larger) > 0:
            for further in tl.static_range(4):
                if first + further < LONGEST:
                    distance = first + further + 1
                    wanted = tl.load(text + length - distance, mask=length >= distance, other=-3)
                    mask = is_equal & (ends >= distance)
                    is_equal = mask & (tl.load(other + ends - distance, mask=mask, other=-2) == wanted)
                    counts += is_equal.to(tl.int32)
    return counts


@triton.jit
def match_kernel(
    slots,
    lengths,
    texts,
    texts_stride,
    best,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Raise a row's entry of `best` [B] int64 to the best match in a block: tokens that match * 2^32 + index after it.

    The entries begin as 0.
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(lengths + slot)
    start = tl.program_id(1) * BLOCK
    if start < length - 1:
        text = texts + slot * texts_stride
        ends = start + 1 + tl.arange(0, BLOCK)
        counts = match_lengths(text, length, text, ends, ends < length, LONGEST).to(tl.int64)
        keys = tl.where(counts >= SHORTEST, (counts << 32) + ends, 0)
        key = tl.reduce(keys, 0, larger)
        if key > 0:
            tl.atomic_max(best + row, key)


@triton.jit(do_not_specialize=["draft_length"])
def copy_kernel(
    slots,
    lengths,
    texts,
    texts_stride,
    best,
    out,
    out_stride,
    draft_length,
    BLOCK: tl.constexpr,
):
    """Write a row's draft to `out`, padded with the text's last token."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(lengths + slot)
    text = texts + slot * texts_stride
    end = (tl.load(best + row) & 0xFFFFFFFF).to(tl.int32)
    columns = tl.arange(0, BLOCK)
    last = tl.load(text + length - 1)
    is_drafted = columns < tl.where(end > 0, tl.minimum(length - end, draft_length), 0)
    tokens = tl.load(text + end + columns, mask=is_drafted, other=0)
    tokens = tl.where(is_drafted, tokens, last).to(tl.int64)
    tl.store(out + row * out_stride + columns, tokens, mask=columns < draft_length)


def draft(slots: Tensor, lengths: Tensor, texts: Tensor, best: Tensor, out: Tensor) -> None:
    """Launch both kernels; `best` is memory, [B] int64.  Texts may have any lengths, which the host does not know."""
    rows, draft_length = out.shape
    best.zero_()
    slots, lengths = slots.contiguous(), lengths.contiguous()
    blocks = triton.cdiv(texts.shape[1], BLOCK)
    stride = texts.stride(0)
    match_kernel[(rows, blocks)](slots, lengths, texts, stride, best, SHORTEST, LONGEST, BLOCK)
    copy_kernel[(rows,)](
        *(slots, lengths, texts, stride, best, out, out.stride(0), draft_length),
        BLOCK=triton.next_power_of_2(draft_length),
        num_warps=1,
    )
