"""Intake: events of requests, and their first texts, for a proposer whose steps run in a stream.

A proposer handles events on a thread of its own here, so that a long prompt delays neither the engine nor its stream.
A slot is handed to the steps, whole, once its text is ingested; until then its rows draft nothing, which is no fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from specplug.errors import EngineError
from specplug.interfaces import HasHostStep
from specplug.match.cpu.locks import Semaphores
from specplug.pipeline.cpu import host_function as host
from specplug.pipeline.handles import ProposerHandle
from specplug.pipeline.runner import ProposerRunner
from specplug.pipeline.worker import JobThread
from specplug.runtime.slots import SlotTable, Span, Tokens
from specplug.types.request import BEGINS, Event, RequestEvent

NO_TEXT = -1
"""Id of tokens that are not text."""

_PIECE = 1 << 13
"""Tokens of a list that are copied at a time, between which other threads get the GIL."""


class Intake(ProposerHandle):
    """The handle of a proposer whose steps run in a stream: it delivers events, and errors of earlier ones.

    Args:
        runner: the runner of the proposer, whose handle it replaces.
        slots: the table of slots, on the CPU.
        texts: [S, L] int32, the token table; the first text of each request is written here.
        progress: see `Shared`.
        on_thread: deliver events on a thread; otherwise on the caller's, at once, which needs steps that run inline.

    Attributes:
        launched: the number of steps that were launched, set by their owner.
        first_lengths: [S] int32, tokens of the first text of each slot's request.
    """

    def __init__(
        self,
        runner: ProposerRunner,
        slots: SlotTable,
        texts: npt.NDArray[np.int32],
        progress: npt.NDArray[np.int64],
        *,
        on_thread: bool,
    ) -> None:
        handle = runner.handle
        super().__init__(handle.spec, handle.proposer, handle.caps)
        assert isinstance(self.proposer, HasHostStep)
        self._stepping: HasHostStep = self.proposer  # found out once: checking against a protocol is slow
        self.launched, self.first_lengths = 0, np.zeros(len(texts), np.int32)
        self._slots, self._texts, self._progress = slots, texts, progress
        self._ingested, self._ingested_by = runner.ingested.numpy(), runner.generations.numpy()
        self._worker = JobThread(f"specplug-{handle.spec.name}") if on_thread else None
        self._jobs: deque[Future[None]] = deque()
        self._semaphores = Semaphores(1)
        if on_thread and not self._semaphores.work:
            raise EngineError.build(
                "requests cannot be taken in beside the steps of a GPU",
                who="specplug",
                found="a system without POSIX semaphores",
                expected="Linux",
            )
        (place,) = self._semaphores.places
        progress[[host.WAIT, host.POST, host.SEMAPHORE]] = self._semaphores.wait, self._semaphores.post, place
        host.wait_for_steps(progress, 0)  # compiled now, like the next function, not at the first request
        first = int(self._ingested[0]), int(self._ingested_by[0])
        host.hand_over(self._ingested, self._ingested_by, 0, *first)

    def on_event(self, event: Event) -> None:
        """Deliver an event, after the steps that were launched before it."""
        if isinstance(event, RequestEvent) and event.kind in BEGINS:
            occupant = self._slots.occupants[event.slot]
            tokens = copy(occupant.tokens)  # an engine may lend its own list, to which it appends
            length = self.first_lengths[event.slot] = max(len(tokens), event.request.prompt_length)
            self._submit(partial(self._begin, event, tokens, int(length), occupant.barriers))
            self._slots.occupants[event.slot] = replace(occupant, tokens=())  # not needed again
        else:
            self._submit(partial(self.proposer.on_event, event))

    def update(self) -> None:
        """Let the proposer bring what slots share up to date, if it is outdated."""
        if self._stepping.is_outdated():
            self._submit(self._stepping.update)

    def check_ready(self) -> None:
        """Raise the first error of the deliveries that have ended."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()

    def settle(self) -> None:
        """Wait until all events so far are delivered."""
        for job in list(self._jobs):
            job.exception()

    def close(self) -> None:
        """Release the proposer; the steps must have ended."""
        self._progress[host.CLOSED] = 1
        if self._worker is not None:
            self._semaphores.post_to(0)
            self._worker.stop()
            self.settle()
        super().close()

    def _submit(self, job: Callable[[], None]) -> None:
        if self._worker is None:
            job()
        else:
            self._jobs.append(self._worker.submit(partial(self._after_steps, self.launched, job)))

    def _after_steps(self, launched: int, job: Callable[[], None]) -> None:
        host.wait_for_steps(self._progress, launched)
        job()

    def _begin(self, event: RequestEvent, tokens: Tokens, length: int, barriers: tuple[Span, ...]) -> None:
        """Begin a request's text, also if the proposer cannot handle the request's event."""
        try:
            self.proposer.on_event(event)
        finally:
            text = self._texts[event.slot, :length]
            for start in range(0, len(tokens), _PIECE):
                stop = min(start + _PIECE, len(tokens))
                text[start:stop] = tokens[start:stop]
            text[len(tokens) :] = NO_TEXT  # no tokens: prompt embeddings
            for start, stop in barriers:
                text[start:stop] = NO_TEXT
            self._stepping.begin_text(event.slot, text)
            host.hand_over(self._ingested, self._ingested_by, event.slot, length, event.generation)
