"""A stream for tests: it runs its work late, on another thread, in bursts, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
        self._work: deque[Callable[[], object]] = deque()
        self._enqueued = self.done = 0
        self._errors: list[BaseException] = []
        self._thread = ThreadPoolExecutor(1, "fake-stream")
        self._has_work, self._keeps_time = threading.Event(), seed is not None
        self._timer = threading.Thread(target=self._keep_time, args=[Random(seed)], daemon=True)
        self._timer.start()

    def launch(self, function: int, argument: int) -> None:
        """Enqueue a call of a host function, without the GIL."""
        self.enqueue(lambda: HOST_FUNCTION(function)(argument))

    def enqueue(self, work: Callable[[], object]) -> None:
        """Enqueue Python code that stands for a kernel."""
        self._work.append(work)
        self._enqueued += 1
        self._has_work.set()

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
        self._thread.submit(self._run_to, place).result()
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def close(self, *, run: bool = True) -> None:
        """Run or drop the work that is left, end the threads, and raise what work raised."""
        self._keeps_time = False
        self._has_work.set()
        self._timer.join()
        try:
            self.run_to(self._enqueued if run else 0)
        finally:
            self._thread.shutdown()
            self._work.clear()

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(run=kind is None)

    def _run_to(self, place: int) -> None:
        while self.done < place and self._work:
            try:
                self._work.popleft()()
            except BaseException as error:
                self._errors.append(error)
            self.done += 1

    def _keep_time(self, random: Random) -> None:
        while self._keeps_time:
            self._has_work.wait()
            self._has_work.clear()
            while self._work and self._keeps_time:
                time.sleep(random.uniform(0, LONGEST_DELAY))
                self._thread.submit(self._run_to, self.done + random.randint(1, LONGEST_BURST))


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
