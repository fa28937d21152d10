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

from specplug.errors import ContractError
from specplug.match.cpu.atomics import call_at, fetch_add, load, store
from specplug.match.cpu.compiled import c_function, compiled
from specplug.match.cpu.entries import call_kernel, handle_of, kernel_address
from specplug.match.cpu.pointers import int32_at, int64_at
from specplug.match.cpu.records import Record, RecordType, borrowed, define
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
from specplug.types.host_step import OK, StepArgument

MOST_NEW = 8192
"""Tokens that one step ingests for all rows together, one or two milliseconds of work.

Each row in turn gets all its new tokens while this lasts, and each of the others as many as a step can emit.  A row
that is left with more drafts nothing until a later step has ingested them.
"""

MALFORMED = -1
"""Status of a step whose proposer wrote an impossible length or an id outside the vocabulary."""

VOCAB_SIZE, NUM_SOURCES, BATCH_SIZE, DRAFT_LENGTH, WINDOW, FUNCTION, DATA, REPORTS, ADMITS, KEEPS, LATE = range(11)
"""Indices of a step's numbers: V, the number of sources, B, K, how many of the newest tokens are packed, the C step and
its data, 0 if others count what was emitted, 0 to leave the proposer out, 0 if the caller stores the drafts, and the
address of `LateRows.flags`, which the function writes."""

STATUS = 11
"""Index of the status, which the function writes."""

NUMBERS = 12

# Numba takes plain integers for constants, but not the members of an enumeration.
_DATA, _BATCH_SIZE, _SLOTS, _TABLE, _NUM_ROWS, _STRIDE, _TABLE_ROWS, _LENGTHS = map(int, list(StepArgument)[:8])
_NUM_NEW, _LIMITS, _IDS, _CONFIDENCE, _DRAFT_STRIDE, _DRAFT_LENGTHS, _SOURCES, _PARENTS = map(
    int, list(StepArgument)[8:]
)


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


class StepType(RecordType):
    """See `Step`."""


class Step(Record):
    """One step in flight; the constructor takes the attributes in this order.

    R is the most rows, S the slots, L the longest text, W the window of newest tokens.

    Attributes:
        memory: the record `Memory` of this step's columns and draft buffers.
        numbers: [`NUMBERS`] int64.
        arguments: [`StepArgument`] int64, the proposer's.
        engine_rows: [R] int64, by draft: the engine's row.
        first_lengths: [R] int32, by draft: tokens of the text when its request began.
        packed_lengths, packed_emitted, packed_verified: [R] int32, by the engine's row.
        newest: [R, W] int32, by the engine's row.
        upto: [R] int32, by draft: tokens that the proposer has after the step.
        texts, text_lengths, text_generations, progress: see `Shared`.
        cut: the record `Cut` of this step.
    """


define(
    Step,
    StepType,
    ["memory", "numbers", "arguments", "engine_rows", "first_lengths", "packed_lengths", "packed_emitted",
     "packed_verified", "newest", "upto", "texts", "text_lengths", "text_generations", "progress", "cut"],
)  # fmt: skip


@compiled
def run(record: Any) -> None:
    """Take the step."""
    step = borrowed(record)
    memory, numbers, left = step.memory, step.numbers, MOST_NEW
    for row in range(numbers[BATCH_SIZE]):
        slot = memory.slots[row]
        facts = memory.table[slot]
        is_whole = _receive(step, row, slot, facts[GENERATION])
        if numbers[REPORTS]:
            judge(memory, step.texts, row, slot, facts)
        else:
            detect_stop(memory, step.texts, row, slot, facts)
        describe_row(memory, row, facts)
        _prepare(step, row, slot, facts, is_whole, left)
        left -= memory.num_new[row]
    status = _draft(step)
    _note_late(step, status)
    _finish(step, status)
    _end(step.progress)


@compiled
def _receive(step: Any, row: int, slot: int, generation: int) -> bool:
    """Append a row's newest tokens to its text; return whether none is missing between them."""
    memory, source, window = step.memory, step.engine_rows[row], step.newest.shape[1]
    length = step.packed_lengths[source]
    memory.lengths[row], memory.emitted[row] = length, step.packed_emitted[source]
    memory.verified[row] = step.packed_verified[source]
    if step.text_generations[slot] != generation:
        step.text_generations[slot], step.text_lengths[slot] = generation, step.first_lengths[row]
    start = step.text_lengths[slot]
    if length - step.numbers[WINDOW] > start or length > step.texts.shape[1]:
        return False
    for place in range(start, length):
        step.texts[slot, place] = step.newest[source, window - length + place]
    step.text_lengths[slot] = max(start, length)
    return True


@compiled
def _prepare(step: Any, row: int, slot: int, facts: Any, is_whole: bool, left: int) -> None:
    """Compute the tokens that a row's proposer ingests, of `left` for it and the rows after it, and the most it drafts.

    A slot whose generation is not yet in `ingested_by` belongs to the thread that ingests its first text.
    """
    memory, length, draft_length = step.memory, step.memory.lengths[row], step.numbers[DRAFT_LENGTH]
    empty(memory, row, 0, draft_length)
    memory.draft_lengths[row], memory.base_len[row] = 0, length
    memory.num_new[row], memory.limits[row], step.upto[row] = 0, 0, 0
    if not is_whole or load(memory.ingested_by, slot) != facts[GENERATION]:
        return
    known = memory.ingested[slot]
    memory.num_new[row] = min(max(length - known, 0), max(left, memory.ids.shape[1] + 1))
    step.upto[row] = known + memory.num_new[row]
    if memory.emitted[row] > 0 and step.upto[row] == length:
        most = min(memory.room[row] - 1, min(facts[CAP], memory.caps[row]), draft_length)
        memory.limits[row] = max(most, 0)


@compiled
def _draft(step: Any) -> int:
    """Let the proposer ingest and draft, and sanitize its drafts; return its status."""
    memory, n = step.memory, step.numbers
    batch_size, draft_length = n[BATCH_SIZE], n[DRAFT_LENGTH]
    status = OK
    if n[ADMITS]:
        _state_arguments(step)
        status = call_at(n[FUNCTION], step.arguments.ctypes.data)
        if status == OK:
            for row in range(batch_size):
                if step.upto[row] > 0:
                    memory.ingested[memory.slots[row]] = step.upto[row]
            if malformed(memory, batch_size, draft_length, n[VOCAB_SIZE]) >= 0:
                status = MALFORMED
    if status != OK:
        memory.draft_lengths[:batch_size] = 0
    sanitize(memory, batch_size, draft_length, n[NUM_SOURCES])
    return status


@compiled
def _note_late(step: Any, status: int) -> None:
    """Note the rows whose drafts, if there are none, tell nothing about the proposer."""
    memory, batch_size = step.memory, step.numbers[BATCH_SIZE]
    late = carray(int32_at(step.numbers[LATE]), batch_size)
    for row in range(batch_size):
        late[row] = status != OK or step.upto[row] != memory.lengths[row]


@compiled
def _finish(step: Any, status: int) -> None:
    """Store the status, trim the drafts, and keep them until their verdict."""
    memory, numbers = step.memory, step.numbers
    numbers[STATUS] = status
    trim(memory, step.cut, numbers[BATCH_SIZE], numbers[DRAFT_LENGTH])
    if numbers[KEEPS]:
        keep(memory, numbers[BATCH_SIZE])


@compiled
def _state_arguments(step: Any) -> None:
    memory, n, arguments = step.memory, step.numbers, step.arguments
    arguments[_DATA], arguments[_BATCH_SIZE] = n[DATA], n[BATCH_SIZE]
    arguments[_SLOTS], arguments[_TABLE_ROWS] = memory.slots.ctypes.data, memory.table_rows.ctypes.data
    arguments[_TABLE], arguments[_NUM_ROWS] = step.texts.ctypes.data, step.texts.shape[0]
    arguments[_STRIDE] = step.texts.shape[1]
    arguments[_LENGTHS], arguments[_NUM_NEW] = step.upto.ctypes.data, memory.num_new.ctypes.data
    arguments[_LIMITS], arguments[_DRAFT_LENGTHS] = memory.limits.ctypes.data, memory.draft_lengths.ctypes.data
    arguments[_IDS], arguments[_CONFIDENCE] = memory.ids.ctypes.data, memory.confidence.ctypes.data
    arguments[_SOURCES], arguments[_DRAFT_STRIDE] = memory.sources.ctypes.data, memory.ids.shape[1]
    arguments[_PARENTS] = memory.parents.ctypes.data if memory.parents.size else 0


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


def argument_of(step: Step) -> npt.NDArray[np.int64]:
    """Return the memory whose address the host function takes, for a step that its owner keeps alive like it."""
    return np.array([kernel_address(run, step), handle_of(step)], np.int64)


def raise_if_failed(status: int) -> None:
    """Raise if a step's status is that of a fault.

    Raises:
        ContractError: the proposer has written an impossible draft.
        RuntimeError: the proposer's function has failed.
    """
    if status == MALFORMED:
        raise ContractError.build("malformed draft", expected="ids in the vocabulary, lengths within the limits")
    if status != OK:
        raise RuntimeError(f"its host step returned {status}")


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
