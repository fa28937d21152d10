"""`pack` and `unpack` as one Triton kernel each; `specplug.pipeline.stream.reference` documents and defines both.

The kernels run on the current stream, with one program per row.  They read and write pinned tensors of the host in
place.  A program loads everything that it can at once, because each load from the host takes about a microsecond.

Triton compiles a kernel at its first launch, which takes about a second.  A launch of 0 rows compiles it and runs
nothing.  No argument that changes from step to step is specialised for, neither values nor the alignment of views.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from specplug.pipeline.stream.buffers import StepBuffers

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs these kernels, on any device: Triton decides this where a kernel is defined."""

_TOKENS = 128
"""Tokens of a row that `pack` copies at once; a constant, so that no other window compiles the kernel again."""


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["window", "tokens_stride"],
    do_not_specialize_on_alignment=[
        *("idx_mapping", "total_len", "all_token_ids", "num_sampled", "num_rejected"),
        *("lengths", "emitted", "verified", "newest"),
    ],
)
def pack_kernel(  # type: ignore[no-untyped-def]
    idx_mapping,
    total_len,
    all_token_ids,
    tokens_stride,
    num_sampled,
    num_rejected,
    lengths,
    emitted,
    verified,
    newest,
    window,
    BLOCK: tl.constexpr,
):
    """Pack one row; the arguments are those of `pack` and the fields of its buffers."""
    row = tl.program_id(0)
    slot = tl.load(idx_mapping + row).to(tl.int64)
    sampled = tl.load(num_sampled + row)
    rejected = tl.load(num_rejected + row)
    length = tl.load(total_len + slot)
    tl.store(lengths + row, length)
    tl.store(emitted + row, sampled)
    tl.store(verified + row, tl.where(sampled > 0, sampled - 1 + rejected, 0))

    text = all_token_ids + slot * tokens_stride
    for start in range(0, window, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        positions = length - window + columns
        mask = (columns < window) & (positions >= 0)
        tl.store(newest + row * window + columns, tl.load(text + positions, mask=mask), mask=mask)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["draft_length", "columns_count", "ids_stride", "last_stride", "out_stride", "confidence_stride"],
    do_not_specialize_on_alignment=[
        *("draft_rows", "draft_lengths", "ids", "levels"),
        *("idx_mapping", "last_sampled", "out", "confidence"),
    ],
)
def unpack_kernel(  # type: ignore[no-untyped-def]
    draft_rows,
    draft_lengths,
    ids,
    levels,
    ids_stride,
    draft_length,
    idx_mapping,
    last_sampled,
    last_stride,
    out,
    out_stride,
    confidence,
    confidence_stride,
    columns_count,
    BLOCK: tl.constexpr,
):
    """Unpack one row; the arguments are those of `unpack` and its buffers, whose confidence is `levels`."""
    row = tl.program_id(0).to(tl.int64)
    draft = tl.load(draft_rows + row)
    slot = tl.load(idx_mapping + row).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    # All of a draft that the step can use is loaded, so that these loads need not wait for the draft's length.
    limit = tl.where(draft >= 0, draft_length, 0)
    length = tl.load(draft_lengths + draft, mask=draft >= 0, other=0)
    tokens = tl.load(ids + draft * ids_stride + columns, mask=columns < limit, other=0)
    level = tl.load(levels + draft * ids_stride + columns, mask=columns < limit, other=0.0)
    last = tl.load(last_sampled + slot * last_stride)

    is_drafted = columns < tl.minimum(length, limit)
    mask = columns < columns_count
    tl.store(out + row * out_stride + columns, tl.where(is_drafted, tokens, last), mask=mask)
    tl.store(confidence + row * confidence_stride + columns, tl.where(is_drafted, level, 0.0), mask=mask)


def pack(
    buffers: StepBuffers,
    batch_size: int,
    idx_mapping: Tensor,
    total_len: Tensor,
    all_token_ids: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
) -> None:
    """Launch the kernel that writes what the step found into `buffers`, like `reference.pack`."""
    pack_kernel[(batch_size,)](
        idx_mapping,
        total_len,
        all_token_ids,
        all_token_ids.stride(0),
        num_sampled,
        num_rejected,
        buffers.lengths,
        buffers.emitted,
        buffers.verified,
        buffers.newest,
        buffers.window,
        BLOCK=_TOKENS,
        num_warps=1,
    )


def unpack(
    buffers: StepBuffers,
    batch_size: int,
    draft_length: int,
    idx_mapping: Tensor,
    last_sampled: Tensor,
    out: Tensor,
    confidence: Tensor,
) -> None:
    """Launch the kernel that writes the drafts in `buffers` into the engine's tensors, like `reference.unpack`."""
    unpack_kernel[(batch_size,)](
        buffers.draft_rows,
        buffers.draft_lengths,
        buffers.ids,
        buffers.confidence,
        buffers.ids.stride(0),
        draft_length,
        idx_mapping,
        last_sampled,
        last_sampled.stride(0),
        out,
        out.stride(0),
        confidence,
        confidence.stride(0),
        out.shape[1],
        BLOCK=triton.next_power_of_2(out.shape[1]),
        num_warps=1,
    )
