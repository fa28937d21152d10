"""`begin` and `finish`, the bookkeeping before and after a proposer's step, as one Triton kernel each.

`begin` does what `StopDetector.after`, `DraftStage.observe` and the first half of `DraftStage.propose` do.  `finish`
does what `sanitize` and `InFlight.put` do, and writes the drafts into the engine's buffers.  Both run on the current
stream, with one program per row, and read and write state by slot in place.  The slots of a batch are distinct, so
programs share only the counters.

Triton compiles a kernel at its first launch, which takes about a second.  A launch of 0 rows compiles it and runs
nothing.  No argument is specialised for, neither values nor the alignment of views.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from specplug.launching import Launcher
from specplug.pipeline.device import columns
from specplug.pipeline.device.columns import DeviceColumns, DeviceState, DraftSums
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.expected import UNIT
from specplug.types.draft import Draft

INTERPRETED: bool = knobs.runtime.interpret is True
"""Whether Triton's interpreter runs these kernels, on any device: Triton decides this where a kernel is defined."""

GENERATION, END, CAP, GRAMMAR, STOP_IDS = map(tl.constexpr, (0, 1, 2, 3, 5))
"""Columns of the slot table."""

BASE_LEN, COUNT, SOURCES = map(tl.constexpr, (1, 2, 3))
"""Entries of a draft's head, after its generation."""

LENGTHS, ROOM, KNOWN, NUM_NEW, LIMITS, COUNTED, TAKEN, BASE, *_VERDICT = map(
    tl.constexpr, range(columns.AFTER_STOP + 1)
)
"""Rows of `DeviceColumns.counts`."""
PROPOSED, VERIFIED, ACCEPTED, _, EMITTED, AFTER_STOP = _VERDICT

ENDED, OF_ENGINE, ROWS = map(tl.constexpr, (columns.ENDED, columns.OF_ENGINE, columns.ROWS))
"""Entries of `DraftSums.sums`."""
SURVIVAL_UNIT, STEP = tl.constexpr(float(UNIT)), tl.constexpr(columns.STEP)

ROW_COUNTS, FATES = tl.constexpr(3), tl.constexpr(6)
"""Figures per source, and per source and position, that `SpecMetrics` counts."""

DRAFT = ("draft_ids", "draft_confidence", "draft_sources", "draft_lengths")
"""Names of the kernels' arguments that are tensors of the draft buffer."""


@triton.jit  # type: ignore[untyped-decorator]
def smaller(a, b):  # type: ignore[no-untyped-def]
    """Return the smaller number, like Triton's own `tl.min`, which its interpreter does not run in every process."""
    return tl.where(a < b, a, b)


@triton.jit  # type: ignore[untyped-decorator]
def times(a, b):  # type: ignore[no-untyped-def]
    """Return the product of two numbers; see `smaller`."""
    return a * b


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("lacking", "tokens_stride", "num_sources", "most", "draft_stride", "max_slots", "draft_length", "reports"),
        *("engine_stride", "engine_tokens"),
    ],
    do_not_specialize_on_alignment=[
        *("idx_mapping", "total_len", "all_token_ids", "num_sampled", "num_rejected", "temperatures", "order", "caps"),
        *("table", "stopped", "ingested", "ingested_by", "heads", "stored_ids", "stored_confidence"),
        *("row_counts", "token_counts", *DRAFT, "base_len"),
        *("counts", "slots", "generations", "sampled", "grammar", "temperature"),
        *("taken_ids", "taken_confidence", "taken_sources", "engine_ids", "continued"),
    ],
)
def begin_kernel(  # type: ignore[no-untyped-def]
    idx_mapping,
    total_len,
    all_token_ids,
    num_sampled,
    num_rejected,
    tokens_stride,
    lacking,
    temperatures,
    order,
    caps,
    table,
    stopped,
    ingested,
    ingested_by,
    heads,
    stored_ids,
    stored_confidence,
    row_counts,
    token_counts,
    num_sources,
    most,
    draft_ids,
    draft_confidence,
    draft_sources,
    draft_stride,
    draft_lengths,
    base_len,
    counts,
    slots,
    generations,
    sampled,
    grammar,
    temperature,
    max_slots,
    taken_ids,
    taken_confidence,
    taken_sources,
    draft_length,
    reports,
    engine_ids,
    engine_stride,
    continued,
    engine_tokens,
    BY_ROW: tl.constexpr,
    STOPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Begin one row; the arguments are those of `begin` and the fields of its records, with `most` for N.

    `engine_ids` are the engine's, and `continued` those of the columns.
    """
    row = tl.program_id(0).to(tl.int64)
    source_row = tl.load(order + row)
    slot = tl.load(idx_mapping + source_row).to(tl.int64)
    at = source_row if BY_ROW else slot
    emitted, rejected = tl.load(num_sampled + source_row).to(tl.int32), tl.load(num_rejected + source_row)
    length, heat = (tl.load(total_len + at) + lacking).to(tl.int32), tl.load(temperatures + at)
    facts, head = table + slot * (STOP_IDS + STOPS), heads + slot * (most + SOURCES)
    generation, end = tl.load(facts + GENERATION), tl.load(facts + END).to(tl.int32)
    cap, has_grammar = tl.load(facts + CAP).to(tl.int32), tl.load(facts + GRAMMAR) != 0
    columns = tl.arange(0, BLOCK)
    start, is_sampled = length - emitted, emitted > 0

    # Tokens after a stop.
    fresh = columns < emitted
    token = tl.load(all_token_ids + slot * tokens_stride + start + columns, mask=fresh, other=-1)
    is_last = start + columns + 1 >= end
    for place in tl.static_range(STOPS):
        is_last = is_last | (token == tl.load(facts + STOP_IDS + place))
    last = tl.reduce(tl.where(is_last & fresh, columns, BLOCK), 0, smaller)
    had_ended = tl.load(stopped + slot) == generation
    after_stop = tl.where(had_ended, emitted, tl.maximum(emitted - last - 1, 0))

    # The verdict on the draft in flight.
    is_valid = (tl.load(head) == generation) & (tl.load(head + BASE_LEN) == start)
    drafted = tl.where(is_valid, tl.load(head + COUNT), 0).to(tl.int32)
    inside = columns < drafted
    sources = tl.load(head + SOURCES + columns, mask=inside, other=-1)
    proposed = tl.where(is_sampled & (after_stop >= emitted), 0, drafted)
    kept = tl.maximum(emitted - 1, 0)
    verified = tl.minimum(tl.where(is_sampled, kept + rejected, 0), proposed)
    before_stop = tl.maximum(emitted - after_stop - 1, 0)
    verified = tl.where(after_stop > 0, tl.minimum(verified, before_stop), verified)
    accepted = tl.minimum(kept, verified)
    tested = tl.minimum(accepted + 1, verified)

    # The tokens that are new to the proposer, and how many it may draft.
    by, had = tl.load(ingested_by + slot), tl.load(ingested + slot)
    known = tl.where(by == generation, had, 0)
    limit = tl.minimum(tl.minimum(end - length - 1, draft_length), tl.minimum(cap, tl.load(caps + row)))
    limit = tl.where(is_sampled, tl.maximum(limit, 0), 0)

    # All threads have loaded the row's state before one of them changes it.
    tl.debug_barrier()
    tl.store(stopped + slot, generation, mask=last < BLOCK)
    tl.store(ingested + slot, length, mask=draft_length > 0)
    tl.store(ingested_by + slot, generation, mask=draft_length > 0)

    # Counters; sources that are unknown, and rows without a draft, count as none, those that take no drafts as off.
    first = tl.where(drafted > 0, tl.load(head + SOURCES), -1)
    first = tl.where((first >= 0) & (first < num_sources), first, num_sources)
    first += ((drafted == 0) & (cap == 0)).to(tl.int64)
    seen = emitted - after_stop
    amount = tl.where(columns == 0, (seen > 0).to(tl.int32), tl.where(columns == 1, seen, after_stop))
    amount = (amount * reports).to(tl.int64)
    tl.atomic_add(row_counts + first * ROW_COUNTS + columns, amount, mask=columns < ROW_COUNTS, sem="relaxed")
    which = tl.where((sources >= 0) & (sources < num_sources), sources, num_sources)
    fate = 2 + (columns < verified).to(tl.int32) + (columns < tested).to(tl.int32) + (columns < accepted).to(tl.int32)
    fates = token_counts + (which * most + columns) * FATES + fate
    tl.atomic_add(fates, tl.full([BLOCK], 1, tl.int64), mask=columns < proposed * reports, sem="relaxed")

    # The row's entries in the columns.
    count = counts + row
    tl.store(count + max_slots * LENGTHS, length)
    tl.store(count + max_slots * ROOM, end - length)
    tl.store(count + max_slots * KNOWN, known)
    tl.store(count + max_slots * NUM_NEW, tl.maximum(length - known, 0))
    tl.store(count + max_slots * LIMITS, limit)
    has_ended = had_ended | (last < BLOCK)
    tl.store(count + max_slots * COUNTED, (is_sampled & (cap != 0) & (has_ended == 0)).to(tl.int32))
    tl.store(count + max_slots * TAKEN, drafted)
    tl.store(count + max_slots * BASE, start)
    tl.store(count + max_slots * PROPOSED, proposed)
    tl.store(count + max_slots * VERIFIED, verified)
    tl.store(count + max_slots * ACCEPTED, accepted)
    tl.store(count + max_slots * EMITTED, emitted)
    tl.store(count + max_slots * AFTER_STOP, after_stop)
    tl.store(slots + row, slot)
    tl.store(generations + row, generation)
    tl.store(sampled + row, is_sampled)
    tl.store(grammar + row, has_grammar)
    tl.store(temperature + row, heat)

    # The draft in flight with its tokens, and an empty row for the next one.
    mask, stored, taken = columns < most, slot * most + columns, row * most + columns
    tl.store(taken_ids + taken, tl.load(stored_ids + stored, mask=inside, other=-1), mask=mask)
    tl.store(taken_confidence + taken, tl.load(stored_confidence + stored, mask=inside, other=0.0), mask=mask)
    tl.store(taken_sources + taken, sources.to(tl.int32), mask=mask)
    mask, place = columns < draft_length, row * draft_stride + columns
    nothing = tl.full([BLOCK], -1, tl.int32)
    tl.store(draft_ids + place, nothing, mask=mask)
    tl.store(draft_confidence + place, tl.full([BLOCK], 0.0, tl.float32), mask=mask)
    tl.store(draft_sources + place, nothing, mask=mask)
    tl.store(draft_lengths + row, 0)
    tl.store(base_len + row, length)
    if engine_ids is not None:
        mask = columns < engine_tokens
        tokens = tl.load(engine_ids + source_row * engine_stride + columns, mask=mask)
        tl.store(continued + row * engine_tokens + columns, tokens.to(tl.int32), mask=mask)


_BEGIN = Launcher(begin_kernel, num_warps=1)


def begin(
    state: DeviceState,
    rows: DeviceColumns,
    draft: Draft,
    batch_size: int,
    draft_length: int,
    order: Tensor,
    caps: Tensor,
    engine: EngineRows,
    temperature: Tensor,
    reports: bool,
) -> None:
    """Report the verified step of B rows to the counters; fill the columns; and empty the rows of the draft.

    Args:
        state: see `DeviceState`.  The proposer's tokens are left alone at a draft length of 0.
        rows: see `DeviceColumns`.
        draft: [>= B, >= draft_length], the draft buffer.
        batch_size: B, the rows that may draft.
        draft_length: most draft tokens of the step.
        order: [>= B] int32, the engine's row of each of them.
        caps: [>= B] int32, most draft tokens of each of them; the slot table may allow fewer.
        engine: the engine's rows.
        temperature: float32, by slot or by the engine's row, as the lengths of `engine` are.
        reports: whether the step is counted; stops are noted in any case.
    """
    engine, engine_tokens = engine.contiguous(), rows.engine_ids.shape[1]
    engine_ids = engine.engine_ids if engine_tokens else None
    num_counters, most = state.token_counts.shape[:2]
    _BEGIN(
        (batch_size, 1, 1),
        *engine[:5],
        engine.all_token_ids.stride(0),
        engine.lacking,
        temperature.contiguous(),
        order,
        caps,
        *state,
        num_counters - 1,
        most,
        draft.token_ids,
        draft.confidence,
        draft.source,
        draft.token_ids.stride(0),
        draft.lengths,
        draft.base_len,
        *rows[:6],
        rows.counts.stride(0),
        rows.taken.token_ids,
        rows.taken.confidence,
        rows.taken.source,
        draft_length,
        int(reports),
        engine_ids,
        0 if engine_ids is None else engine_ids.stride(0),
        rows.engine_ids,
        engine_tokens,
        types=tuple([None if it is None else it.dtype for it in (*engine[:5], engine_ids)]),
        BY_ROW=engine.lengths_by_row,
        STOPS=state.table.shape[1] - STOP_IDS.value,
        BLOCK=triton.next_power_of_2(max(most + 1, engine_tokens, 4)),
    )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        *("last_stride", "draft_stride", "max_slots", "most", "vocab_size", "num_sources", "draft_length", "planned"),
        *("out_stride", "confidence_stride", "from_engine_stride", "columns_count", "adds", "step", "engine_source"),
    ],
    do_not_specialize_on_alignment=[
        *("idx_mapping", "last_sampled", "places", "caps", "counts", "generations"),
        *("heads", "stored_ids", "stored_confidence", "sums", "record"),
        *(*DRAFT, "out", "confidence", "from_engine"),
    ],
)
def finish_kernel(  # type: ignore[no-untyped-def]
    idx_mapping,
    last_sampled,
    last_stride,
    places,
    caps,
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
    planned,
    out,
    out_stride,
    confidence,
    confidence_stride,
    from_engine,
    from_engine_stride,
    columns_count,
    engine_source,
    sums,
    record,
    adds,
    step,
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
    is_counted = tl.load(counts + max_slots * COUNTED + draft, mask=drafts, other=0)
    base = tl.load(counts + max_slots * LENGTHS + draft, mask=drafts, other=0)
    generation = tl.load(generations + draft, mask=drafts, other=0)
    cap = tl.load(caps + draft, mask=drafts, other=0)
    last = tl.load(last_sampled + slot * last_stride)

    is_possible = (ids >= 0) & (ids < vocab_size)
    sound = tl.reduce(tl.where(is_possible, BLOCK, columns), 0, smaller)
    found = tl.maximum(tl.minimum(tl.minimum(length, allowed), tl.minimum(sound, limit)), 0)
    count = tl.minimum(found, tl.minimum(planned, cap))
    level = tl.where((columns < found) & (level >= 0.0), level, 0.0)  # also where it is NaN
    level = tl.where(level > 1.0, 1.0, level)
    is_drafted = columns < count
    source = tl.where(is_drafted & (source >= 0) & (source < num_sources), source, -1)
    continues = tl.reduce(tl.where(source == engine_source, BLOCK, columns), 0, smaller)

    # What the drafts are expected to yield, before they are cut to the plan.
    if adds:
        survival = tl.associative_scan(level, 0, times)
        amount = (survival * SURVIVAL_UNIT + 0.5).to(tl.int64)
        tl.atomic_add(sums + ROWS + 1 + columns, amount, mask=columns < found * is_counted, sem="relaxed")
        tl.atomic_add(sums + ROWS, is_counted.to(tl.int64), sem="relaxed")

    # All threads have loaded the draft's length before one of them changes it.
    tl.debug_barrier()
    tl.store(draft_lengths + draft, count, mask=drafts)
    mask, level = columns < columns_count, tl.where(is_drafted, level, 0.0)
    tl.store(out + row * out_stride + columns, tl.where(is_drafted, ids, last), mask=mask)
    tl.store(confidence + row * confidence_stride + columns, level, mask=mask)
    if from_engine is not None:
        tl.store(from_engine + row * from_engine_stride, tl.minimum(continues, count))
    head, stored, mask = heads + slot * (most + SOURCES), slot * most + columns, columns < tl.where(drafts, most, 0)
    tl.store(head, generation, mask=drafts)
    tl.store(head + BASE_LEN, base.to(tl.int64), mask=drafts)
    tl.store(head + COUNT, count.to(tl.int64), mask=drafts)
    tl.store(head + SOURCES + columns, source.to(tl.int64), mask=mask)
    tl.store(stored_ids + stored, tl.where(is_drafted, ids, -1), mask=mask)
    tl.store(stored_confidence + stored, level, mask=mask)

    # The last program to end records the sums, and leaves zeros.
    if step > 0:
        tl.atomic_add(sums + OF_ENGINE, (tl.minimum(continues, count) > 0).to(tl.int64), sem="relaxed")
        tl.debug_barrier()
        ended = tl.atomic_add(sums + ENDED, 1, sem="acq_rel")
        if ended == tl.num_programs(0) - 1:
            amount = tl.atomic_xchg(sums + ROWS + 1 + columns, tl.full([BLOCK], 0, tl.int64), mask=columns < most)
            tl.store(record + 2 + columns, amount, mask=columns < most)
            zero = tl.program_id(0).to(tl.int64) * 0
            tl.store(record + 1, tl.atomic_xchg(sums + ROWS, zero))
            tl.atomic_xchg(sums + ENDED, zero)
            tl.store(record, step.to(tl.int64) * STEP + tl.atomic_xchg(sums + OF_ENGINE, zero))


_FINISH = Launcher(finish_kernel, num_warps=1)


def finish(
    state: DeviceState,
    rows: DeviceColumns,
    draft: Draft,
    draft_length: int,
    planned: int,
    vocab_size: int,
    places: Tensor,
    caps: Tensor,
    idx_mapping: Tensor,
    last_sampled: Tensor,
    outputs: DraftOutputs,
    sums: DraftSums,
    *,
    adds: bool = False,
    step: int = 0,
) -> None:
    """Make the drafts safe to verify, store them until their verdict, and write them into the engine's buffers.

    Args:
        state, rows, draft, draft_length: of the step's `begin`.  The lengths of `draft` become those of its safe
            tokens that the plan allows.
        planned: the plan's draft length.
        vocab_size: V.
        places: [B] int32, the row of `draft` of each of the engine's B rows; -1 for rows that do not draft.
        caps: by row of `draft`, int32, the plan's most draft tokens.
        idx_mapping: [B] int32 or int64, the slot of each of the engine's rows.
        last_sampled: [S] or [S, 1] int32 or int64, the last token of each slot, which pads its draft.
        outputs: [B, K], set to draft ids and their confidence, 0 for padding, and to the engine's own tokens if it has
            a column for them.
        sums: see `DraftSums`.
        adds: whether the survival of the drafts is added, as it is before they are cut to the plan.
        step: number of the step, from 1 on, whose record is written; 0 for none.
    """
    most, (out, confidence, _, _, from_engine) = state.ids.shape[1], outputs
    assert confidence is not None
    _FINISH(
        (out.shape[0], 1, 1),
        idx_mapping.contiguous(),
        last_sampled,
        last_sampled.stride(0),
        places,
        caps,
        draft.token_ids,
        draft.confidence,
        draft.source,
        draft.token_ids.stride(0),
        draft.lengths,
        rows.counts,
        rows.generations,
        rows.counts.stride(0),
        state.heads,
        state.ids,
        state.confidence,
        most,
        vocab_size,
        len(draft.sources),
        draft_length,
        planned,
        out,
        out.stride(0),
        confidence,
        confidence.stride(0),
        from_engine,
        0 if from_engine is None else from_engine.stride(0),
        out.shape[1],
        len(draft.sources) - 1 if rows.engine_ids.shape[1] else len(draft.sources),
        sums.sums,
        sums.records[step % len(sums.records)],
        int(adds),
        step,
        types=tuple([None if it is None else it.dtype for it in (idx_mapping, last_sampled, out, from_engine)]),
        BLOCK=triton.next_power_of_2(max(most, out.shape[1])),
    )
