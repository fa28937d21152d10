"""`pack` and `unpack` as one Triton kernel each; `specplug.pipeline.stream.buffers` documents both.

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

from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream.buffers import StepBuffers

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs these kernels, on any device: Triton decides this where a kernel is defined."""

_TOKENS = 128
"""Tokens of a row that `pack` copies at once; a constant, so that no other window compiles the kernel again."""


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("window", "packed_count", "tokens_stride", "lacking_count"),
        *("engine_stride", "engine_tokens"),
    ],
    do_not_specialize_on_alignment=[
        *("idx_mapping", "total_len", "all_token_ids", "num_sampled", "num_rejected"),
        *("lengths", "emitted", "verified", "newest", "engine_ids", "engine_ids_out"),
    ],
)
def pack_kernel(  # type: ignore[no-untyped-def]
    idx_mapping,
    total_len,
    all_token_ids,
    num_sampled,
    num_rejected,
    tokens_stride,
    lacking_count,
    lengths,
    emitted,
    verified,
    newest,
    window,
    packed_count,
    engine_ids,
    engine_stride,
    engine_ids_out,
    engine_tokens,
    BY_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    ENGINE_BLOCK: tl.constexpr,
):
    """Pack one row; the arguments are the fields of `EngineRows` and of the buffers."""
    row = tl.program_id(0)
    slot = tl.load(idx_mapping + row).to(tl.int64)
    sampled = tl.load(num_sampled + row)
    rejected = tl.load(num_rejected + row)
    length = tl.load(total_len + (row if BY_ROW else slot)).to(tl.int32) + lacking_count
    tl.store(lengths + row, length)
    tl.store(emitted + row, sampled)
    tl.store(verified + row, tl.where(sampled > 0, sampled - 1 + rejected, 0))

    text = all_token_ids + slot * tokens_stride
    for start in range(0, packed_count, BLOCK):
        columns = window - packed_count + start + tl.arange(0, BLOCK)
        positions = length - window + columns
        mask = (columns < window) & (positions >= 0)
        tl.store(newest + row * window + columns, tl.load(text + positions, mask=mask), mask=mask)
    if engine_ids is not None:
        columns = tl.arange(0, ENGINE_BLOCK)
        mask = columns < engine_tokens
        tokens = tl.load(engine_ids + row.to(tl.int64) * engine_stride + columns, mask=mask)
        tl.store(engine_ids_out + row * engine_tokens + columns, tokens.to(tl.int32), mask=mask)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("draft_length", "columns_count", "window"),
        *("buffers_stride", "out_stride", "confidence_stride", "lengths_stride", "parents_stride"),
        "from_engine_stride",
    ],
    do_not_specialize_on_alignment=[
        *("draft_rows", "draft_lengths", "newest", "ids", "levels", "links"),
        *("out", "confidence", "lengths", "parents", "from_engine", "of_engine"),
    ],
)
def unpack_kernel(  # type: ignore[no-untyped-def]
    draft_rows,
    draft_lengths,
    newest,
    window,
    ids,
    levels,
    links,
    buffers_stride,
    draft_length,
    out,
    out_stride,
    confidence,
    confidence_stride,
    lengths,
    lengths_stride,
    parents,
    parents_stride,
    from_engine,
    from_engine_stride,
    columns_count,
    of_engine,
    BLOCK: tl.constexpr,
):
    """Unpack one row; the arguments are the buffers, whose confidence and parents are `levels` and `links`, and the
    fields of `DraftOutputs`, of which all but `out` may be None.
    """
    row = tl.program_id(0).to(tl.int64)
    draft = tl.load(draft_rows + row)
    columns = tl.arange(0, BLOCK)
    # All of a draft that the step can use is loaded, so that these loads need not wait for the draft's length.
    limit = tl.where(draft >= 0, tl.minimum(draft_length, columns_count), 0)
    can_be = columns < limit
    at = draft * buffers_stride + columns
    length = tl.minimum(tl.maximum(tl.load(draft_lengths + draft, mask=draft >= 0, other=0), 0), limit)
    tokens = tl.load(ids + at, mask=can_be, other=0)
    last = tl.load(newest + row * window + window - 1)

    is_drafted = columns < length
    mask = columns < columns_count
    tl.store(out + row * out_stride + columns, tl.where(is_drafted, tokens, last), mask=mask)
    if confidence is not None:
        level = tl.load(levels + at, mask=can_be, other=0.0)
        tl.store(confidence + row * confidence_stride + columns, tl.where(is_drafted, level, 0.0), mask=mask)
    if lengths is not None:
        tl.store(lengths + row * lengths_stride, length)
    if from_engine is not None:
        count = tl.load(of_engine + draft, mask=draft >= 0, other=0)
        tl.store(from_engine + row * from_engine_stride, tl.minimum(count, length))
    if parents is not None:
        link = tl.load(links + at, mask=can_be, other=0)
        tl.store(parents + row * parents_stride + columns, tl.where(is_drafted, link, columns - 1), mask=mask)


def pack(buffers: StepBuffers, batch_size: int, rows: EngineRows) -> None:
    """Launch the kernel that writes what the step found into `buffers`; see `Transfers.pack`."""
    rows = rows.contiguous()
    pack_kernel[(batch_size,)](
        *rows[:5],
        rows.all_token_ids.stride(0),
        rows.lacking,
        buffers.lengths,
        buffers.emitted,
        buffers.verified,
        buffers.newest,
        buffers.newest.shape[1],
        buffers.packed,
        *_strided(rows.engine_ids),
        buffers.engine_ids,
        buffers.engine_ids.shape[1],
        BY_ROW=rows.lengths_by_row,
        BLOCK=_TOKENS,
        ENGINE_BLOCK=triton.next_power_of_2(max(1, buffers.engine_ids.shape[1])),
        num_warps=1,
    )


def unpack(buffers: StepBuffers, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
    """Launch the kernel that writes the drafts in `buffers` into the engine's tensors; see `Transfers.unpack`."""
    unpack_kernel[(batch_size,)](
        buffers.draft_rows,
        buffers.draft_lengths,
        buffers.newest,
        buffers.newest.shape[1],
        buffers.ids,
        buffers.confidence,
        buffers.parents,
        buffers.ids.stride(0),
        draft_length,
        outputs.ids,
        outputs.ids.stride(0),
        *_strided(outputs.confidence),
        *_strided(outputs.lengths),
        *_strided(outputs.parents),
        *_strided(outputs.from_engine),
        outputs.ids.shape[1],
        buffers.from_engine,
        BLOCK=triton.next_power_of_2(buffers.ids.shape[1]),
        num_warps=1,
    )


def _strided(tensor: Tensor | None) -> tuple[Tensor | None, int]:
    return tensor, 0 if tensor is None else tensor.stride(0)
