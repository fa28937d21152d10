"""The pool of threads that share a lookup's batches; `parallel` has their kernels.

The threads are Python's, for their start and end, but between these they are in one compiled kernel without the GIL,
where they block on a semaphore.  So jobs can come from any thread, and idle threads cost nothing.  They are not
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

from specplug.match.cpu.locks import Semaphores
from specplug.match.cpu.parallel import COUNTERS, FEWEST_ROWS, HELPERS, JOB, MOST_THREADS, STOPPED, Pool, help_with

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
        self.record = Pool(  # type: ignore[no-untyped-call]
            self._counters,
            np.zeros(JOB, np.int64),
            semaphores.wait,
            semaphores.try_wait,
            semaphores.post,
            *semaphores.places,
        )
        self.started: list[threading.Thread] = []
        self._stop: weakref.finalize[..., ThreadPool] | None = None
        _pools.add(self)

    @property
    def may_start(self) -> bool:
        """Whether there are threads to start."""
        return self.threads > 1 and self._stop is None

    def is_due(self, rows: int) -> bool:
        """Return whether the threads should be started, for a batch of this many rows."""
        return self.may_start and rows >= FEWEST_ROWS

    def start(self, state: Any) -> None:
        """Start the threads.

        Args:
            state: one of the states whose jobs they share; all states have the same type.
        """
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
