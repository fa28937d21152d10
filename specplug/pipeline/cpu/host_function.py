"""The draft stage's step as a host function of an engine's stream: bookkeeping of `kernels` around a C step.

What it reads has come by `pack` (see `specplug.pipeline.stream`) or was written before the launch; what it alone writes
is the texts, the counters and the drafts in flight, in the order of the stream.  Nothing waits for it but the stream.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import c_function, call_kernel, compiled, handle_of, kernel_address
from specplug.match.cpu.intrinsics import call_at, fetch_add, float64_at, int32_at, int64_at, load, store, struct_at
from specplug.match.cpu.records import Record, borrowed
from specplug.pipeline.cpu.kernels import (
    CAP,
    GENERATION,
    describe_row,
    detect_stop,
    empty,
    judge,
    keep,
    malformed,
    sanitize,
)
from specplug.pipeline.cpu.trimming import trim
from specplug.types.host_step import OK, Int64Struct, StepArguments, int64_fields

MOST_NEW = 8192
"""Tokens that one step ingests for all rows together, one or two milliseconds of work.

Each row in turn gets all its new tokens while this lasts, and each of the others as many as a step can emit.  A row
that is left with more drafts nothing until a later step has ingested them.
"""

UNKNOWN = 0.75
"""The confidence of a token of the engine's own drafter, where nothing else says it."""

MALFORMED = -1
"""Status of a step whose proposer wrote an impossible length or an id outside the vocabulary."""


@int64_fields
class StepControl(Int64Struct):
    """The numbers of one step."""

    vocab_size: int
    """V."""
    num_sources: int
    """The last of them is the engine's own drafter, if it has one."""
    batch_size: int
    """B."""
    draft_length: int
    """K, the most tokens of a draft that the engine gets."""
    longest: int
    """The most tokens that the proposer drafts, at least K."""
    window: int
    """How many of the newest tokens are packed."""
    function: int
    data: int
    """The proposer's `HostStep`."""
    counts_verdicts: int
    """0 if others count what was emitted."""
    runs_proposer: int
    """0 to leave the proposer out."""
    stores_drafts: int
    """0 if the caller stores the drafts until their verdict."""
    late: int
    """The address of `LateRows.flags`, which the function writes."""
    sums: int
    """The address of `DraftReport.sums`, which the function writes; 0 if the step does not report them."""
    status: int
    """`OK`, `BUSY`, `FAILED` or `MALFORMED`, which the function writes."""


ENDED, WAITING, CLOSED, WAIT, POST, SEMAPHORE, PROGRESS = range(7)
"""Indices of `Shared.progress`: the number of steps that have ended, 1 while a thread waits for one to end, 1 to let it
wait no longer, the addresses of two functions that it waits by and is woken by, and of their argument."""


class Shared(NamedTuple):
    """What all steps share, of S slots and texts of at most L tokens; only the host function writes to it.

    Attributes:
        texts: [S, L] int32, the token table.  The beginning of each text is written by whoever ingests it.
        text_lengths: [S] int32, tokens in it, of the generations in `text_generations` [S] int64.
        stopped: [S] int64, the generation of each slot that has stopped.
        progress: [`PROGRESS`] int64, how many steps have ended, and who waits for that; see `wait_for_steps`.
    """

    texts: npt.NDArray[np.int32]
    text_lengths: npt.NDArray[np.int32]
    text_generations: npt.NDArray[np.int64]
    stopped: npt.NDArray[np.int64]
    progress: npt.NDArray[np.int64]

    @classmethod
    def allocate(cls, max_slots: int, max_length: int) -> Shared:
        """Return memory without texts; pages are used as texts grow."""
        generations, stopped = np.zeros((2, max_slots), np.int64)
        texts, lengths = np.zeros((max_slots, max_length), np.int32), np.zeros(max_slots, np.int32)
        return cls(texts, lengths, generations, stopped, np.zeros(PROGRESS, np.int64))


_control_at, _arguments_at = struct_at(StepControl), struct_at(StepArguments)


@compiled
def run(record: Any) -> None:
    """Take a step.

    R is the most rows, S the slots, L the longest text, W the window of newest tokens.

    Args:
        record: a record of

            memory: the step's columns and draft buffers, see `specplug.pipeline.cpu.kernels`
            control, arguments: the addresses of its `StepControl` and of its proposer's `StepArguments`
            engine_rows: [R] int64, by draft: the engine's row
            first_lengths: [R] int32, by draft: tokens of the text when its request began
            packed_lengths, packed_emitted, packed_verified: [R] int32, by the engine's row
            newest: [R, W] int32, by the engine's row
            packed_engine_ids: [R, G] int32, by the engine's row
            engine_ids: [R, G] int32, by draft
            from_engine: [R] int32, by draft: how many of its first tokens are the engine's
            upto: [R] int32, by draft: tokens that the proposer has after the step
            survivals: [N] float32, for the function's own use
            texts, text_lengths, text_generations, progress: see `Shared`
            cut: see `specplug.pipeline.cpu.trimming.trim`
    """
    step = borrowed(record)
    control, memory, left = _control_at(step.control), step.memory, MOST_NEW
    for row in range(control.batch_size):
        slot = memory.slots[row]
        facts = memory.table[slot]
        is_whole = _receive(step, control.window, row, slot, facts[GENERATION])
        if control.counts_verdicts:
            judge(memory, step.texts, row, slot, facts)
        else:
            detect_stop(memory, step.texts, row, slot, facts)
        describe_row(memory, row, facts)
        _prepare(step, control, row, slot, facts, is_whole, left)
        left -= memory.num_new[row]
    status = _draft(step, control)
    _note_late(step, control, status)
    if control.sums != 0:
        _sum_survivals(step, control)
        _cut_to_plan(memory, control)
    _finish(step, control, status)
    _end(step.progress)


@compiled
def _receive(step: Any, packed: int, row: int, slot: int, generation: int) -> bool:
    """Append a row's newest tokens, of which so many are packed, to its text; return whether none is missing."""
    memory, source, window = step.memory, step.engine_rows[row], step.newest.shape[1]
    length = step.packed_lengths[source]
    memory.lengths[row], memory.emitted[row] = length, step.packed_emitted[source]
    memory.verified[row] = step.packed_verified[source]
    if step.text_generations[slot] != generation:
        step.text_generations[slot], step.text_lengths[slot] = generation, step.first_lengths[row]
    start = step.text_lengths[slot]
    if length - packed > start or length > step.texts.shape[1]:
        return False
    for place in range(start, length):
        step.texts[slot, place] = step.newest[source, window - length + place]
    step.text_lengths[slot] = max(start, length)
    return True


@compiled
def _prepare(step: Any, control: Any, row: int, slot: int, facts: Any, is_whole: bool, left: int) -> None:
    """Compute the tokens that a row's proposer ingests, of `left` for it and the rows after it, and the most it drafts.

    A slot whose generation is not yet in `ingested_by` belongs to the thread that ingests its first text.
    """
    memory, length = step.memory, step.memory.lengths[row]
    empty(memory, row, 0, control.longest)
    memory.draft_lengths[row], memory.base_len[row] = 0, length
    memory.num_new[row], memory.limits[row], step.upto[row] = 0, 0, 0
    step.engine_ids[row] = step.packed_engine_ids[step.engine_rows[row]]
    if not is_whole or load(memory.ingested_by, slot) != facts[GENERATION]:
        return
    known = memory.ingested[slot]
    memory.num_new[row] = min(max(length - known, 0), max(left, memory.ids.shape[1] + 1))
    step.upto[row] = known + memory.num_new[row]
    if step.upto[row] == length:
        memory.limits[row] = _most(memory, control, row, facts)


@compiled
def _most(memory: Any, control: Any, row: int, facts: Any) -> int:
    """Return the most tokens that the proposer drafts for a row; those beyond the plan's caps are cut later."""
    if memory.emitted[row] == 0:
        return 0
    cap = facts[CAP] if control.sums != 0 else min(facts[CAP], memory.caps[row])
    return max(min(memory.room[row] - 1, cap, control.longest), 0)  # type: ignore[no-any-return]


@compiled
def _draft(step: Any, control: Any) -> int:
    """Let the proposer ingest and draft, and sanitize its drafts; return its status."""
    memory = step.memory
    batch_size = control.batch_size
    longest = control.longest
    status = OK
    if control.runs_proposer:
        _set_arguments(step, control)
        status = call_at(control.function, step.arguments)
        if status == OK:
            for row in range(batch_size):
                if step.upto[row] > 0:
                    memory.ingested[memory.slots[row]] = step.upto[row]
            if malformed(memory, batch_size, longest, control.vocab_size) >= 0:
                status = MALFORMED
    if status != OK:
        memory.draft_lengths[:batch_size] = 0
    if step.engine_ids.shape[1]:
        _leave_to_engine(step, control, status)
    sanitize(memory, batch_size, longest, control.num_sources)
    return status


@compiled
def num_engine_tokens(engine_ids: Any, limit: int) -> int:
    """Return how many of the engine's tokens there are, at most `limit`."""
    count = 0
    while count < min(engine_ids.size, limit) and engine_ids[count] >= 0:
        count += 1
    return count


@compiled
def _leave_to_engine(step: Any, control: Any, status: int) -> None:
    """Let the engine's own draft stand in the rows that the proposer could not draft for."""
    memory = step.memory
    for row in range(control.batch_size):
        if control.runs_proposer and status == OK and step.upto[row] == memory.lengths[row]:
            continue
        memory.limits[row] = _most(memory, control, row, memory.table[memory.slots[row]])
        memory.draft_lengths[row] = num_engine_tokens(step.engine_ids[row], memory.limits[row])
        for k in range(memory.draft_lengths[row]):
            memory.ids[row, k], memory.confidence[row, k] = step.engine_ids[row, k], UNKNOWN
            memory.sources[row, k] = control.num_sources - 1


@compiled
def _set_arguments(step: Any, control: Any) -> None:
    memory, a = step.memory, _arguments_at(step.arguments)
    a.data, a.batch_size, a.slots = control.data, control.batch_size, memory.slots.ctypes.data
    a.table, a.num_rows, a.stride = step.texts.ctypes.data, step.texts.shape[0], step.texts.shape[1]
    a.table_rows, a.lengths = memory.table_rows.ctypes.data, step.upto.ctypes.data
    a.engine_ids, a.num_engine_ids = step.engine_ids.ctypes.data, step.engine_ids.shape[1]
    a.num_new, a.limits = memory.num_new.ctypes.data, memory.limits.ctypes.data
    a.ids, a.confidence = memory.ids.ctypes.data, memory.confidence.ctypes.data
    a.draft_lengths, a.draft_stride = memory.draft_lengths.ctypes.data, memory.ids.shape[1]
    a.sources, a.parents = memory.sources.ctypes.data, memory.parents.ctypes.data if memory.parents.size else 0


@compiled
def _note_late(step: Any, control: Any, status: int) -> None:
    """Note the rows whose drafts, if there are none, tell nothing about the proposer."""
    late = carray(int32_at(control.late), control.batch_size)
    for row in range(control.batch_size):
        late[row] = status != OK or step.upto[row] != step.memory.lengths[row]


@compiled
def _sum_survivals(step: Any, control: Any) -> None:
    """Sum up the survival probabilities of drafts by position, and count their rows; see `DraftReport`.

    A row is counted if it sampled, may draft, was not late, and has not ended.  Beyond its own cap and its room it
    drafts nothing, and so adds nothing.
    """
    memory = step.memory
    survivals = step.survivals
    late = carray(int32_at(control.late), control.batch_size)
    sums = carray(float64_at(control.sums), control.longest + 1)
    for row in range(control.batch_size):
        slot = memory.slots[row]
        facts = memory.table[slot]
        has_ended = memory.stopped[slot] == facts[GENERATION]
        if late[row] != 0 or memory.emitted[row] == 0 or facts[CAP] == 0 or has_ended:
            continue
        sums[0] += 1.0
        for k in range(memory.draft_lengths[row]):
            parent = memory.parents[row, k] if memory.parents.size > 0 else k - 1
            above = survivals[parent] if parent >= 0 else np.float32(1.0)
            survivals[k] = above * memory.confidence[row, k]
            sums[k + 1] += survivals[k]


@compiled
def _cut_to_plan(memory: Any, control: Any) -> None:
    """Cut drafts to the plan's length and caps."""
    for row in range(control.batch_size):
        count = min(memory.draft_lengths[row], control.draft_length, memory.caps[row])
        empty(memory, row, count, control.longest)
        memory.draft_lengths[row] = count


@compiled
def _finish(step: Any, control: Any, status: int) -> None:
    """Store the status, trim the drafts, and keep them until their verdict."""
    control.status, memory = status, step.memory
    trim(memory, step.cut, control.batch_size, control.draft_length)
    for row in range(control.batch_size if step.engine_ids.shape[1] else 0):
        count = 0
        while count < memory.draft_lengths[row] and memory.sources[row, count] == control.num_sources - 1:
            count += 1
        step.from_engine[row] = count
    if control.stores_drafts:
        keep(step.memory, control.batch_size)


def _enter(argument: int) -> None:
    """Run the kernel whose address and record are at an address.

    Numba must see that nothing here raises, or the C function could take the GIL.
    """
    numbers = int64_at(argument)
    call_kernel(numbers[0], numbers[1], ())


def host_function() -> int:
    """Return the address of `void f(void *)`, which runs `run` on the step that `argument_of` describes."""
    return int(_compiled_entry().address)


@cache
def _compiled_entry() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("void(int64)")(_enter)


def argument_of(step: Record) -> npt.NDArray[np.int64]:
    """Return the memory whose address the host function takes, for a step that its owner keeps alive like it."""
    return np.array([kernel_address(run, step), handle_of(step)], np.int64)


@compiled
def _end(progress: Any) -> None:
    """Count a step that has ended, and wake the thread that waits for one."""
    fetch_add(progress, ENDED, 1)
    if load(progress, WAITING) != 0:
        store(progress, WAITING, 0)
        call_at(progress[POST], progress[SEMAPHORE])


@compiled
def wait_for_steps(progress: Any, count: int) -> None:
    """Wait, without the GIL, until so many steps have ended; one thread may wait at a time."""
    while load(progress, ENDED) < count and load(progress, CLOSED) == 0:
        store(progress, WAITING, 1)
        if load(progress, ENDED) < count and load(progress, CLOSED) == 0:
            call_at(progress[WAIT], progress[SEMAPHORE])


@compiled
def hand_over(ingested: Any, ingested_by: Any, slot: int, length: int, generation: int) -> None:
    """Give a slot, of whose text the proposer has `length` tokens, to the steps."""
    ingested[slot] = length
    store(ingested_by, slot, generation)
