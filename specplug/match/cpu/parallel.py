"""Jobs: operations on a batch whose rows several threads share, and the pool of these threads.

A job is a step's arguments and what to do with them.  The thread that has one counts out its rows in chunks, wakes the
pool's threads, and takes chunks like them until none is left, so a thread that wakes late delays nobody.  Every row is
drafted with its slot's memory and its thread's own workspace, so the result does not depend on who takes which chunk.
The kernels do not allocate or raise, and need no GIL, so jobs may be run on threads that Python does not know.

The pool's threads are Python's, for their start and end, but between these they are in one compiled kernel without the
GIL, where they block on a semaphore.  So jobs can come from any thread, and idle threads cost nothing.  They are not
numba's, whose pool must not be entered by two threads at once, nor the engine's, which are busy with the model.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled, inlined
from specplug.match.cpu.intrinsics import call_at, fetch_add, float32_at, int32_at, int64_at, load, store, struct_at
from specplug.match.cpu.locks import Semaphores
from specplug.match.cpu.records import address_of, borrowed, borrowed_at, record
from specplug.match.cpu.steps import extend_texts, propose
from specplug.types.host_step import StepArguments

CHUNK = 16
"""Rows of a chunk: as many as are searched in the corpus index at a time."""

FEWEST_ROWS = 8 * CHUNK
"""Rows from which a job is shared; waking a thread takes as long as drafting for a dozen rows."""

MOST_THREADS = 64
"""The most threads that share a job."""

SPINS = 5000
"""Looks at a semaphore before blocking, some 20 microseconds: a step's jobs follow closely, and waking takes longer."""

ANY, EXTEND, DRAFT = -1, 0, 1
"""Operations: that of the job, `steps.extend_texts`, and `steps.propose`."""

OPERATION, ROWS, STATE, THREADS, ARGUMENTS, JOB = range(6)
"""Indices of a job's numbers: an operation, the rows, the address of a state, the number of threads, and the address of
`StepArguments`; and how many numbers they are."""

FINISHED, HELPERS, STOPPED, REMAINING, LINE = 0, 8, 9, 16, 8
"""Indices of a pool's counters: chunks that are done, the pool's own threads, 1 to end these, and `LINE` numbers (a
cache line) for each thread, the first of which is how many chunks of its part of the batch nobody has taken yet."""

COUNTERS = REMAINING + LINE * MOST_THREADS
"""Number of counters."""

arguments_at = struct_at(StepArguments)


@inlined
def run(state: Any, operation: int, arguments: int, rows: int) -> None:
    """Run an operation on the `rows` rows of `StepArguments` at an address."""
    pool, chunks = state.pool, (rows + CHUNK - 1) // CHUNK
    counters, job, threads = pool.counters, pool.job, pool.counters[HELPERS] + 1
    job[OPERATION], job[ROWS], job[STATE], job[ARGUMENTS] = operation, rows, address_of(state), arguments
    if threads == 1 or rows < FEWEST_ROWS:
        _run_rows(state, operation, job, 0, rows)
        return
    job[THREADS], counters[FINISHED] = threads, 0
    for thread in range(threads):  # from here on, threads that are awake take chunks
        store(counters, REMAINING + LINE * thread, _part(chunks, thread + 1, threads) - _part(chunks, thread, threads))
    for _ in range(min(threads, chunks) - 1):
        call_at(pool.post, pool.begun)
    if not _take_chunks(state, 0, operation):
        _wait(pool, pool.ended)


@compiled
def help_with(first_state: Any, thread: int) -> None:
    """Take part in the jobs of a state's pool, as its thread number `thread`, from 1, until the pool is stopped."""
    state = borrowed(first_state)
    pool = state.pool
    while True:
        _wait(pool, pool.begun)
        if load(pool.counters, STOPPED):
            break
        if _take_chunks(state, thread, ANY):
            call_at(pool.post, pool.ended)


@inlined
def _wait(pool: Any, semaphore: int) -> None:
    for _ in range(SPINS):
        if call_at(pool.try_wait, semaphore) == 0:
            return
    while call_at(pool.wait, semaphore) != 0:  # interrupted by a signal
        pass


@inlined
def _part(chunks: int, thread: int, threads: int) -> int:
    """Return the first chunk of a thread's part of the batch."""
    return chunks * thread // threads


@inlined
def _take_chunks(like: Any, thread: int, operation: int) -> bool:
    """Run chunks of the pool's job until all are taken; return whether this thread was the one that finished last.

    A thread begins with its own part, so that a row's memory tends to stay in its caches, and then takes from others.
    Whoever got a number above 0 has a chunk of the current job, which stays the current one until that chunk is done.
    The job's own thread knows its operation at compile time.
    """
    counters, job, owner, is_last = like.pool.counters, like.pool.job, thread, False
    for _ in range(job[THREADS]):
        while True:
            remaining = fetch_add(counters, REMAINING + LINE * owner, -1)
            if remaining <= 0:
                break
            rows, state = job[ROWS], borrowed_at(like, job[STATE])
            chunks = (rows + CHUNK - 1) // CHUNK
            begin = (_part(chunks, owner + 1, job[THREADS]) - remaining) * CHUNK
            mine, which = (
                borrowed_at(like, state.of_threads[thread]),
                job[OPERATION] if operation == ANY else operation,
            )
            _run_rows(mine, which, job, begin, min(begin + CHUNK, rows))
            is_last = fetch_add(counters, FINISHED, 1) == chunks - 1
        owner = owner + 1 if owner + 1 < job[THREADS] else 0
    return is_last


@inlined
def _run_rows(state: Any, operation: int, job: Any, begin: int, end: int) -> None:
    a = arguments_at(job[ARGUMENTS])
    if operation == EXTEND:
        extend_texts(
            state,
            carray(int64_at(a.slots), end)[begin:],
            carray(int32_at(a.table), (a.num_rows, a.stride)),
            carray(int64_at(a.table_rows), end)[begin:],
            carray(int32_at(a.first), end if a.first else 0)[begin:],
            carray(int32_at(a.lengths), end)[begin:],
            carray(int32_at(a.num_new), end)[begin:],
        )
    else:
        grid = end, a.draft_stride
        propose(
            state,
            carray(int64_at(a.slots), end)[begin:],
            carray(int32_at(a.limits), end)[begin:],
            carray(int32_at(a.engine_ids), (end, a.num_engine_ids))[begin:],
            carray(int32_at(a.ids), grid)[begin:],
            carray(float32_at(a.confidence), grid)[begin:],
            carray(int32_at(a.draft_lengths), end)[begin:],
            carray(int32_at(a.sources), grid)[begin:],
            carray(int32_at(a.parents), (end if a.parents else 0, a.draft_stride))[begin:],
        )


_BEGUN = 0
"""Index of the semaphore that the pool's threads wait for; the other is for the thread that has a job."""

_logger = logging.getLogger(__name__)


class ThreadPool:
    """At most T threads for one lookup's jobs: the thread that has a job, and T - 1 of the pool's own.

    Attributes:
        threads: T; 1 also where POSIX semaphores are missing, after `close`, or if no thread can be started.
        started: the pool's own threads that are running.
        record: the record that kernels take.
    """

    def __init__(self, threads: int) -> None:
        self._semaphores = Semaphores(2)
        self.threads = min(threads, MOST_THREADS) if self._semaphores.work else 1
        self._counters = np.zeros(COUNTERS, np.int64)
        semaphores = self._semaphores
        begun, ended = semaphores.places
        self.record = record(
            counters=self._counters,
            job=np.zeros(JOB, np.int64),
            wait=semaphores.wait,
            try_wait=semaphores.try_wait,
            post=semaphores.post,
            begun=begun,
            ended=ended,
        )
        self.started: list[threading.Thread] = []
        self._stop: weakref.finalize[..., ThreadPool] | None = None
        _pools.add(self)

    def is_due(self, rows: int) -> bool:
        """Return whether there are threads to start, for a batch of this many rows."""
        return self.threads > 1 and self._stop is None and rows >= FEWEST_ROWS

    def start(self, state: Any) -> None:
        """Start the threads; `state` is one of those whose jobs they share, which all have the same type."""
        self._counters[STOPPED] = 1
        self._semaphores.post_to(_BEGUN)
        help_with(state, 0)  # ends at once, and is compiled now rather than in all threads at the same time
        self._counters[STOPPED] = 0
        self._stop = weakref.finalize(self, _stop, self.started, self._counters, self._semaphores)
        try:
            for number in range(1, self.threads):
                name = f"specplug-match-{number}"
                thread = threading.Thread(target=help_with, args=(state, number), name=name, daemon=True)
                thread.start()
                self.started.append(thread)
        except RuntimeError as error:  # no more threads are allowed, or the interpreter is ending
            _logger.warning("drafting on %d threads, not on %d: %s", len(self.started) + 1, self.threads, error)
            self.threads = len(self.started) + 1
        self._counters[HELPERS] = len(self.started)

    def close(self) -> None:
        """Stop the threads, and wait until they have ended; later jobs run on the thread that has them."""
        self.threads = 1
        if self._stop is not None:
            self._stop()

    def forget_threads(self) -> None:
        """Start anew in a child process after a fork, which copies no threads; jobs start them again."""
        if self._stop is not None:
            self._stop.detach()
            self._stop, self.started = None, []
        self._counters[HELPERS] = 0
        self._semaphores.create()


def _stop(threads: list[threading.Thread], counters: npt.NDArray[np.int64], semaphores: Semaphores) -> None:
    """Stop threads; runs when a pool is closed or collected, and when the interpreter ends."""
    counters[HELPERS], counters[STOPPED] = 0, 1
    for _ in threads:
        semaphores.post_to(_BEGUN)
    for thread in threads:
        thread.join()
    threads.clear()


def _forget_threads() -> None:
    for pool in list(_pools):
        pool.forget_threads()


_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
