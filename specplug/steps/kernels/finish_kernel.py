"""What comes after a proposer's step, in Triton: `finish_row` for one row, and the kernel that does it for all.

It is what `sanitize` and `InFlight.put` do; and it writes the drafts into the engine's buffers.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from specplug.steps.device_step import DraftOutputs
from specplug.steps.draft_report import UNIT
from specplug.steps.kernels import columns
from specplug.steps.kernels.begin_kernel import BASE_LEN, COUNT, COUNTED, LENGTHS, LIMITS, SOURCES, smaller
from specplug.steps.kernels.columns import DeviceColumns, DeviceState, Tokens

ENDED, OF_ENGINE, ROWS = map(tl.constexpr, (columns.ENDED, columns.OF_ENGINE, columns.ROWS))
"""Entries of `DraftSums.sums`."""
SURVIVAL_UNIT = tl.constexpr(float(UNIT))
STEP = tl.constexpr(columns.STEP)
RECORDS = tl.constexpr(columns.RECORDS)


class Finish(NamedTuple):
    """Arguments of `finish_row`; `launches.finish` and `DeviceStep` describe the others.

    Attributes:
        draft_lengths: of `draft`.
        sums, records: of `DraftSums`.
        last_stride, draft_stride, out_stride, confidence_stride, from_engine_stride, records_stride: between rows.
        columns_count: K.
        max_slots, max_draft_length: S and N of `DeviceColumns`.
        num_sources, engine_source: sources of drafts, and the number of the engine's own.
    """

    idx_mapping: Tensor
    last_sampled: Tensor
    places: Tensor
    caps: Tensor
    state: DeviceState
    rows: DeviceColumns
    draft: Tokens
    draft_lengths: Tensor
    outputs: DraftOutputs
    sums: Tensor
    records: Tensor
    last_stride: int
    draft_stride: int
    out_stride: int
    confidence_stride: int
    from_engine_stride: int
    records_stride: int
    columns_count: int
    max_slots: int
    max_draft_length: int
    vocab_size: int
    num_sources: int
    engine_source: int
    draft_length: int
    planned: int
    adds: int
    step: int


@triton.jit  # type: ignore[untyped-decorator]
def times(a, b):  # type: ignore[no-untyped-def]
    """Return the product of two numbers; see `smaller`."""
    return a * b


@triton.jit  # type: ignore[untyped-decorator]
def finish_row(it, program, SIZES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Finish one row.

    Args:
        it: see `Finish`.
        program: the engine's row.
        SIZES: a power of two, N and K at least.
    """
    BLOCK: tl.constexpr = SIZES[0]
    row = program.to(tl.int64)
    draft = tl.load(it.places + row).to(tl.int64)
    slot = tl.load(it.idx_mapping + row).to(tl.int64)
    drafts = draft >= 0
    columns = tl.arange(0, BLOCK)
    # All of a draft that the step can use is loaded, so that these loads need not wait for the draft's length.
    limit = tl.where(drafts, it.draft_length, 0)
    here = columns < limit
    place = draft * it.draft_stride + columns
    ids = tl.load(it.draft.ids + place, mask=here, other=-1)
    level = tl.load(it.draft.confidence + place, mask=here, other=0.0)
    source = tl.load(it.draft.sources + place, mask=here, other=-1)
    length = tl.load(it.draft_lengths + draft, mask=drafts, other=0)
    allowed = tl.load(it.rows.counts + it.max_slots * LIMITS + draft, mask=drafts, other=0)
    is_counted = tl.load(it.rows.counts + it.max_slots * COUNTED + draft, mask=drafts, other=0)
    base = tl.load(it.rows.counts + it.max_slots * LENGTHS + draft, mask=drafts, other=0)
    generation = tl.load(it.rows.generations + draft, mask=drafts, other=0)
    cap = tl.load(it.caps + draft, mask=drafts, other=0)
    last = tl.load(it.last_sampled + slot * it.last_stride)

    is_possible = (ids >= 0) & (ids < it.vocab_size)
    sound = tl.reduce(tl.where(is_possible, BLOCK, columns), 0, smaller)
    found = tl.maximum(tl.minimum(tl.minimum(length, allowed), tl.minimum(sound, limit)), 0)
    count = tl.minimum(found, tl.minimum(it.planned, cap))
    level = tl.where((columns < found) & (level >= 0.0), level, 0.0)  # also where it is NaN
    level = tl.where(level > 1.0, 1.0, level)
    is_drafted = columns < count
    source = tl.where(is_drafted & (source >= 0) & (source < it.num_sources), source, -1)
    continues = tl.reduce(tl.where(source == it.engine_source, BLOCK, columns), 0, smaller)

    # What the drafts are expected to yield, before they are cut to the plan.
    if it.adds:
        survival = tl.associative_scan(level, 0, times)
        amount = (survival * SURVIVAL_UNIT + 0.5).to(tl.int64)
        tl.atomic_add(it.sums + ROWS + 1 + columns, amount, mask=columns < found * is_counted, sem="relaxed")
        tl.atomic_add(it.sums + ROWS, is_counted.to(tl.int64), sem="relaxed")

    # All threads have loaded the draft's length before one of them changes it.
    tl.debug_barrier()
    tl.store(it.draft_lengths + draft, count, mask=drafts)
    mask = columns < it.columns_count
    level = tl.where(is_drafted, level, 0.0)
    tl.store(it.outputs.ids + row * it.out_stride + columns, tl.where(is_drafted, ids, last), mask=mask)
    tl.store(it.outputs.confidence + row * it.confidence_stride + columns, level, mask=mask)
    if it.outputs.from_engine is not None:
        tl.store(it.outputs.from_engine + row * it.from_engine_stride, tl.minimum(continues, count))
    head = it.state.heads + slot * (it.max_draft_length + SOURCES)
    stored = slot * it.max_draft_length + columns
    mask = columns < tl.where(drafts, it.max_draft_length, 0)
    tl.store(head, generation, mask=drafts)
    tl.store(head + BASE_LEN, base.to(tl.int64), mask=drafts)
    tl.store(head + COUNT, count.to(tl.int64), mask=drafts)
    tl.store(head + SOURCES + columns, source.to(tl.int64), mask=mask)
    tl.store(it.state.ids + stored, tl.where(is_drafted, ids, -1), mask=mask)
    tl.store(it.state.confidence + stored, level, mask=mask)

    # The last program to end records the sums, and leaves zeros.
    if it.step > 0:
        tl.atomic_add(it.sums + OF_ENGINE, (tl.minimum(continues, count) > 0).to(tl.int64), sem="relaxed")
        tl.debug_barrier()
        ended = tl.atomic_add(it.sums + ENDED, 1, sem="acq_rel")
        if ended == tl.num_programs(0) - 1:
            zero = row * 0
            record = it.records + it.step % RECORDS * it.records_stride
            amount = tl.atomic_xchg(
                it.sums + ROWS + 1 + columns, tl.full([BLOCK], 0, tl.int64), mask=columns < it.max_draft_length
            )
            tl.store(record + 2 + columns, amount, mask=columns < it.max_draft_length)
            tl.store(record + 1, tl.atomic_xchg(it.sums + ROWS, zero))
            tl.atomic_xchg(it.sums + ENDED, zero)
            tl.store(record, it.step.to(tl.int64) * STEP + tl.atomic_xchg(it.sums + OF_ENGINE, zero))


@triton.jit  # type: ignore[untyped-decorator]
def finish_kernel(it, SIZES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Finish a row of the engine per program."""
    finish_row(it, tl.program_id(0), SIZES)
