"""`finish`, the bookkeeping after a proposer's step, as one Triton kernel; see `begin` for how such kernels run.

It does what `specplug.pipeline.choices` and `InFlight.put` do, and writes the drafts into the engine's buffers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specplug.pipeline.device.columns import DeviceColumns, DeviceState
from specplug.pipeline.device.layout import BASE_LEN, COUNT, DRAFT, LENGTHS, LIMITS, SOURCES, smaller
from specplug.types.draft import Draft


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("last_stride", "draft_stride", "max_slots", "most", "vocab_size", "num_sources", "draft_length"),
        *("out_stride", "confidence_stride", "columns_count"),
    ],
    do_not_specialize_on_alignment=[
        *("idx_mapping", "last_sampled", "places", "counts", "generations", "heads", "stored_ids", "stored_confidence"),
        *(*DRAFT, "out", "confidence"),
    ],
)
def finish_kernel(  # type: ignore[no-untyped-def]
    idx_mapping,
    last_sampled,
    last_stride,
    places,
    draft_ids,
    draft_confidence,
    draft_sources,
    draft_stride,
    draft_lengths,
    counts,
    generations,
    max_slots,
    heads,
    stored_ids,
    stored_confidence,
    most,
    vocab_size,
    num_sources,
    draft_length,
    out,
    out_stride,
    confidence,
    confidence_stride,
    columns_count,
    BLOCK: tl.constexpr,
):
    """Finish one row; the arguments are those of `finish` and the fields of its records, with `most` for N."""
    row = tl.program_id(0).to(tl.int64)
    draft = tl.load(places + row).to(tl.int64)
    slot = tl.load(idx_mapping + row).to(tl.int64)
    drafts, columns = draft >= 0, tl.arange(0, BLOCK)
    # All of a draft that the step can use is loaded, so that these loads need not wait for the draft's length.
    limit = tl.where(drafts, draft_length, 0)
    here, place = columns < limit, draft * draft_stride + columns
    ids = tl.load(draft_ids + place, mask=here, other=-1)
    level = tl.load(draft_confidence + place, mask=here, other=0.0)
    source = tl.load(draft_sources + place, mask=here, other=-1)
    length = tl.load(draft_lengths + draft, mask=drafts, other=0)
    allowed = tl.load(counts + max_slots * LIMITS + draft, mask=drafts, other=0)
    base = tl.load(counts + max_slots * LENGTHS + draft, mask=drafts, other=0)
    generation = tl.load(generations + draft, mask=drafts, other=0)
    last = tl.load(last_sampled + slot * last_stride)

    is_possible = (ids >= 0) & (ids < vocab_size)
    sound = tl.reduce(tl.where(is_possible, BLOCK, columns), 0, smaller)
    count = tl.maximum(tl.minimum(tl.minimum(length, allowed), tl.minimum(sound, limit)), 0)
    is_drafted = columns < count
    level = tl.where(is_drafted & (level >= 0.0), level, 0.0)  # also where it is NaN
    level = tl.where(level > 1.0, 1.0, level)
    source = tl.where(is_drafted & (source >= 0) & (source < num_sources), source, -1)

    # All threads have loaded the draft's length before one of them changes it.
    tl.debug_barrier()
    tl.store(draft_lengths + draft, count, mask=drafts)
    mask = columns < columns_count
    tl.store(out + row * out_stride + columns, tl.where(is_drafted, ids, last), mask=mask)
    tl.store(confidence + row * confidence_stride + columns, level, mask=mask)
    head, stored, mask = heads + slot * (most + SOURCES), slot * most + columns, columns < tl.where(drafts, most, 0)
    tl.store(head, generation, mask=drafts)
    tl.store(head + BASE_LEN, base.to(tl.int64), mask=drafts)
    tl.store(head + COUNT, count.to(tl.int64), mask=drafts)
    tl.store(head + SOURCES + columns, source.to(tl.int64), mask=mask)
    tl.store(stored_ids + stored, tl.where(is_drafted, ids, -1), mask=mask)
    tl.store(stored_confidence + stored, level, mask=mask)


def finish(
    state: DeviceState,
    columns: DeviceColumns,
    draft: Draft,
    draft_length: int,
    vocab_size: int,
    places: Tensor,
    idx_mapping: Tensor,
    last_sampled: Tensor,
    out: Tensor,
    confidence: Tensor,
) -> None:
    """Make the drafts safe to verify, store them until their verdict, and write them into the engine's buffers.

    Args:
        state, columns, draft, draft_length: of the step's `begin`.  The lengths of `draft` become those of its safe
            tokens.
        vocab_size: V.
        places: [B] int32, the row of `draft` of each of the engine's B rows; -1 for rows that do not draft.
        idx_mapping: [B] int32 or int64, the slot of each of the engine's rows.
        last_sampled: [S] or [S, 1] int32 or int64, the last token of each slot, which pads its draft.
        out: [B, K] int32 or int64, set to draft ids; rows may be further apart than K.
        confidence: [B, K] float32, set to the drafts' confidence, 0 for padding; rows may be further apart than K.
    """
    most = state.ids.shape[1]
    finish_kernel[(out.shape[0],)](
        idx_mapping.contiguous(),
        last_sampled,
        last_sampled.stride(0),
        places,
        draft.token_ids,
        draft.confidence,
        draft.source,
        draft.token_ids.stride(0),
        draft.lengths,
        columns.counts,
        columns.generations,
        columns.counts.stride(0),
        state.heads,
        state.ids,
        state.confidence,
        most,
        vocab_size,
        len(draft.sources),
        draft_length,
        out,
        out.stride(0),
        confidence,
        confidence.stride(0),
        out.shape[1],
        BLOCK=triton.next_power_of_2(max(most, out.shape[1])),
        num_warps=1,
    )
