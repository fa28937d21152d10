"""What comes before a proposer's step, in Triton: `begin_row` for one row, and the kernel that does it for all.

It is what `StopDetector.after`, `DraftStage.observe` and the first half of `DraftStage.propose` do.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from specplug.steps import slots
from specplug.steps.device_step import EngineTensors
from specplug.steps.kernels import columns
from specplug.steps.kernels.columns import DeviceColumns, DeviceState, Tokens

GENERATION, END, CAP, GRAMMAR, STOP_IDS = map(
    tl.constexpr, (slots.GENERATION, slots.END, slots.CAP, slots.GRAMMAR, slots.STOP_IDS)
)
"""Columns of the slot table."""

BASE_LEN, COUNT, SOURCES = map(tl.constexpr, (1, 2, 3))
"""Entries of a draft's head, after its generation."""

LENGTHS, ROOM, KNOWN, NUM_NEW, LIMITS, COUNTED, TAKEN, BASE, *_VERDICT = map(
    tl.constexpr, range(columns.AFTER_STOP + 1)
)
"""Rows of `DeviceColumns.counts`."""
PROPOSED, VERIFIED, ACCEPTED, _, EMITTED, AFTER_STOP = _VERDICT

ROW_COUNTS = tl.constexpr(3)
OUTCOMES = tl.constexpr(6)
"""Figures per source, and per source and position, that `SpecMetrics` counts."""


class Begin(NamedTuple):
    """Arguments of `begin_row`; `launches.begin` and `DeviceStep` describe the others.

    Attributes:
        draft_lengths, base_len: of `draft`.
        tokens_stride, engine_stride, draft_stride: between rows of the engine's tokens, of its own drafts, of `draft`.
        max_slots, max_draft_length: S and N of `DeviceColumns`.
        num_sources: sources of drafts.
        engine_tokens: G of `DeviceColumns`; if it is 0, `engine.engine_ids` is None.
    """

    engine: EngineTensors
    temperatures: Tensor
    order: Tensor
    caps: Tensor
    state: DeviceState
    rows: DeviceColumns
    draft: Tokens
    draft_lengths: Tensor
    base_len: Tensor
    tokens_stride: int
    engine_stride: int
    draft_stride: int
    max_slots: int
    max_draft_length: int
    num_sources: int
    engine_tokens: int
    draft_length: int
    reports: int


@triton.jit  # type: ignore[untyped-decorator]
def smaller(a, b):  # type: ignore[no-untyped-def]
    """Return the smaller number, like Triton's own `tl.min`, which its interpreter does not run in every process."""
    return tl.where(a < b, a, b)


@triton.jit  # type: ignore[untyped-decorator]
def begin_row(it, program, SIZES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Begin one row.

    Args:
        it: see `Begin`.
        program: the row.
        SIZES: M of `DeviceState`, and a power of two above N and G.
    """
    STOPS: tl.constexpr = SIZES[0]
    BLOCK: tl.constexpr = SIZES[1]
    row = program.to(tl.int64)
    source_row = tl.load(it.order + row)
    slot = tl.load(it.engine.idx_mapping + source_row).to(tl.int64)
    at = tl.where(it.engine.lengths_by_row, source_row, slot)
    emitted = tl.load(it.engine.num_sampled + source_row).to(tl.int32)
    rejected = tl.load(it.engine.num_rejected + source_row)
    length = (tl.load(it.engine.total_len + at) + it.engine.num_uncounted).to(tl.int32)
    temperature = tl.load(it.temperatures + at)
    facts = it.state.table + slot * (STOP_IDS + STOPS)
    head = it.state.heads + slot * (it.max_draft_length + SOURCES)
    generation = tl.load(facts + GENERATION)
    end = tl.load(facts + END).to(tl.int32)
    cap = tl.load(facts + CAP).to(tl.int32)
    has_grammar = tl.load(facts + GRAMMAR) != 0
    columns = tl.arange(0, BLOCK)
    start = length - emitted
    is_sampled = emitted > 0

    # Tokens after a stop.
    fresh = columns < emitted
    token = tl.load(it.engine.all_token_ids + slot * it.tokens_stride + start + columns, mask=fresh, other=-1)
    is_last = start + columns + 1 >= end
    for place in tl.static_range(STOPS):
        is_last = is_last | (token == tl.load(facts + STOP_IDS + place))
    last = tl.reduce(tl.where(is_last & fresh, columns, BLOCK), 0, smaller)
    had_ended = tl.load(it.state.stopped + slot) == generation
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
    by = tl.load(it.state.ingested_by + slot)
    had = tl.load(it.state.ingested + slot)
    known = tl.where(by == generation, had, 0)
    limit = tl.minimum(tl.minimum(end - length - 1, it.draft_length), tl.minimum(cap, tl.load(it.caps + row)))
    limit = tl.where(is_sampled, tl.maximum(limit, 0), 0)

    # All threads have loaded the row's state before one of them changes it.
    tl.debug_barrier()
    tl.store(it.state.stopped + slot, generation, mask=last < BLOCK)
    tl.store(it.state.ingested + slot, length, mask=it.draft_length > 0)
    tl.store(it.state.ingested_by + slot, generation, mask=it.draft_length > 0)

    # Counters; sources that are unknown, and rows without a draft, count as none, those that take no drafts as off.
    first = tl.where(drafted > 0, tl.load(head + SOURCES), -1)
    first = tl.where((first >= 0) & (first < it.num_sources), first, it.num_sources)
    first += ((drafted == 0) & (cap == 0)).to(tl.int64)
    seen = emitted - after_stop
    amount = tl.where(columns == 0, (seen > 0).to(tl.int32), tl.where(columns == 1, seen, after_stop))
    amount = (amount * it.reports).to(tl.int64)
    by_row = it.state.row_counts + first * ROW_COUNTS + columns
    tl.atomic_add(by_row, amount, mask=columns < ROW_COUNTS, sem="relaxed")
    which = tl.where((sources >= 0) & (sources < it.num_sources), sources, it.num_sources)
    outcome = (
        2 + (columns < verified).to(tl.int32) + (columns < tested).to(tl.int32) + (columns < accepted).to(tl.int32)
    )
    outcomes = it.state.token_counts + (which * it.max_draft_length + columns) * OUTCOMES + outcome
    tl.atomic_add(outcomes, tl.full([BLOCK], 1, tl.int64), mask=columns < proposed * it.reports, sem="relaxed")

    # The row's entries in the columns.
    count = it.rows.counts + row
    tl.store(count + it.max_slots * LENGTHS, length)
    tl.store(count + it.max_slots * ROOM, end - length)
    tl.store(count + it.max_slots * KNOWN, known)
    tl.store(count + it.max_slots * NUM_NEW, tl.maximum(length - known, 0))
    tl.store(count + it.max_slots * LIMITS, limit)
    has_ended = had_ended | (last < BLOCK)
    tl.store(count + it.max_slots * COUNTED, (is_sampled & (cap != 0) & (has_ended == 0)).to(tl.int32))
    tl.store(count + it.max_slots * TAKEN, drafted)
    tl.store(count + it.max_slots * BASE, start)
    tl.store(count + it.max_slots * PROPOSED, proposed)
    tl.store(count + it.max_slots * VERIFIED, verified)
    tl.store(count + it.max_slots * ACCEPTED, accepted)
    tl.store(count + it.max_slots * EMITTED, emitted)
    tl.store(count + it.max_slots * AFTER_STOP, after_stop)
    tl.store(it.rows.slots + row, slot)
    tl.store(it.rows.generations + row, generation)
    tl.store(it.rows.sampled + row, is_sampled)
    tl.store(it.rows.grammar + row, has_grammar)
    tl.store(it.rows.temperature + row, temperature)

    # The draft in flight with its tokens, and an empty row for the next one.
    mask = columns < it.max_draft_length
    stored = slot * it.max_draft_length + columns
    taken = row * it.max_draft_length + columns
    tl.store(it.rows.taken.ids + taken, tl.load(it.state.ids + stored, mask=inside, other=-1), mask=mask)
    level = tl.load(it.state.confidence + stored, mask=inside, other=0.0)
    tl.store(it.rows.taken.confidence + taken, level, mask=mask)
    tl.store(it.rows.taken.sources + taken, sources.to(tl.int32), mask=mask)
    mask = columns < it.draft_length
    place = row * it.draft_stride + columns
    nothing = tl.full([BLOCK], -1, tl.int32)
    tl.store(it.draft.ids + place, nothing, mask=mask)
    tl.store(it.draft.confidence + place, tl.full([BLOCK], 0.0, tl.float32), mask=mask)
    tl.store(it.draft.sources + place, nothing, mask=mask)
    tl.store(it.draft_lengths + row, 0)
    tl.store(it.base_len + row, length)
    if it.engine.engine_ids is not None:
        mask = columns < it.engine_tokens
        tokens = tl.load(it.engine.engine_ids + source_row * it.engine_stride + columns, mask=mask)
        tl.store(it.rows.engine_ids + row * it.engine_tokens + columns, tokens.to(tl.int32), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def begin_kernel(it, SIZES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Begin a row per program."""
    begin_row(it, tl.program_id(0), SIZES)
