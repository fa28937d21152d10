"""A stream for tests: it runs its work late, on another thread, in bursts, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from random import Random

from specplug.pipeline.stream.launch import HOST_FUNCTION, HostFunctionStream, Mark

LONGEST_DELAY, LONGEST_BURST = 2e-4, 5


class FakeStream(HostFunctionStream):
    """A stream whose work runs on demand, or on a random schedule, on a thread of its own.

    Work whose Python code raises counts as done, so that nothing waits for it forever; the first error is raised by
    the next `run`, `drain`, `close` or `wait` of a mark.  As a context manager it closes at the end, and drops the work
    that is left if the body raised.

    Args:
        seed: of a schedule of delays (up to 0.2 ms) and bursts (up to 5 pieces of work); None runs work on demand only.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._schedule = None if seed is None else Random(seed)
        self._changed = threading.Condition()
        self._work: deque[Callable[[], object]] = deque()
        self._enqueued = self.done = 0
        self._allowed = 0  # work of these first places may run
        self._closed = False
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, name="fake-stream", daemon=True)
        self._thread.start()

    def launch(self, function: int, argument: int) -> None:
        """Enqueue a call of a host function, without the GIL."""
        self.enqueue(lambda: HOST_FUNCTION(function)(argument))

    def enqueue(self, work: Callable[[], object]) -> None:
        """Enqueue Python code that stands for a kernel."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the stream is closed")
            self._work.append(work)
            self._enqueued += 1
            self._changed.notify_all()

    def mark(self) -> Mark:
        return _Place(self, self._enqueued)

    @property
    def waiting(self) -> int:
        """The number of pieces of work that have not ended."""
        return self._enqueued - self.done

    def run(self, count: int = 1) -> None:
        """Run the next pieces of work, at most as many as are enqueued, and wait until they have ended."""
        self.run_to(min(self.done + count, self._enqueued))

    def drain(self) -> None:
        """Run all work that is enqueued so far, and wait until it has ended."""
        self.run_to(self._enqueued)

    def run_to(self, place: int) -> None:
        """Run the work before a place, and wait until it has ended; raise what it raised."""
        with self._changed:
            self._allowed = max(self._allowed, place)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.done >= place or not self._thread.is_alive())
        self._report()

    def close(self, *, run: bool = True) -> None:
        """Run or drop the work that is left, end the thread, and raise what work raised."""
        with self._changed:
            self._closed = True
            self._allowed = self._enqueued
            if not run:
                self._work.clear()
            self._changed.notify_all()
        self._thread.join()
        self._report()

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(run=kind is None)

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException as error:
                self._errors.append(error)
            with self._changed:
                self.done += 1
                self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        """Return the next piece of work once it may run, or None when the stream is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_turn)
                if not self._work:
                    return None
                if self.done < self._allowed:
                    return self._work.popleft()
            assert self._schedule is not None
            time.sleep(self._schedule.uniform(0, LONGEST_DELAY))
            with self._changed:
                self._allowed = max(self._allowed, self.done + self._schedule.randint(1, LONGEST_BURST))

    def _has_turn(self) -> bool:
        if not self._work:
            return self._closed
        return self.done < self._allowed or self._schedule is not None

    def _report(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]


class _Place(Mark):
    """A mark after the first pieces of work of a stream."""

    def __init__(self, stream: FakeStream, place: int) -> None:
        self._stream, self._place = stream, place

    @property
    def reached(self) -> bool:
        return self._stream.done >= self._place

    def wait(self) -> None:
        """Let the work before the mark run, and wait until it has ended."""
        self._stream.run_to(self._place)

    def ends_within(self, seconds: float) -> bool:
        """Let the work before the mark run, as `wait` does."""
        self.wait()
        return True
