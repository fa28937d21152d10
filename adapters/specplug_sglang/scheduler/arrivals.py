"""Tracking of arriving and leaving requests by the state of SGLang's `Req` objects.

SGLang does not notify its worker: a request that finished, was aborted or was retracted is just missing from the next
batch.  So the worker keeps references to its requests and checks them whenever the batch changes or the engine idles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.runtime.slots import RunningRequest, SlotAllocator
from specplug_sglang.requests import prompt_of
from specplug_sglang.scheduler.endings import visible_tokens

Text = npt.NDArray[np.int64]


class Arrivals:
    """Keeps a `SlotAllocator` in step with SGLang's requests.

    Args:
        allocator: notified of starts, resumptions, preemptions and ends; its slots are rows of SGLang's request pool.
        describe: converts a `Req` with its text to a `RunningRequest`.
        write: called with the slot and the text of a `Req` whenever it gets a slot.
        forget: called with the id of every request that has ended, with or without a slot.

    Attributes:
        queues: called with a `Req` that has no row in the pool; returns whether it waits for one.
    """

    def __init__(
        self,
        allocator: SlotAllocator,
        describe: Callable[[Any, Text], RunningRequest],
        write: Callable[[int, Text], None],
        forget: Callable[[str], None],
    ) -> None:
        self._slots, self._describe, self._write, self._forget = allocator, describe, write, forget
        self._held: dict[str, tuple[Any, int]] = {}  # request, retraction count
        self.queues: Callable[[Any], bool] = lambda req: True
        allocator.engine_slot = self._slot

    def __len__(self) -> int:
        """Return how many requests are running or may resume."""
        return len(self._held)

    def admit(self, reqs: Sequence[Any]) -> None:
        """Assign slots to the requests of a batch; those that have one keep it."""
        self.sweep(reqs)
        for req in reqs:
            held = self._held.get(req.rid)
            if held is not None and held[0] is not req:
                self._end(req.rid, aborted=True)  # the same id, another request
            elif held is not None and held[1] != req.retraction_count:
                self._slots.preempt(req.rid)
            self._held[req.rid] = (req, req.retraction_count)
            if req.rid not in self._slots:
                self._settle(req)

    def sweep(self, batch: Sequence[Any] = ()) -> None:
        """Remove requests that have ended, and preempt those that were retracted.

        Args:
            batch: the requests of the coming step.  Some may have ended, because SGLang may process the previous
                results after it schedules a step.  They are removed at the next sweep.
        """
        coming = {id(req) for req in batch}
        for rid, (req, _) in list(self._held.items()):
            if id(req) in coming:
                self._move(req)
            elif req.finished():
                self._end(rid, aborted=_is_abort(req.finished_reason))
            elif req.kv.req_pool_idx is None and not self.queues(req):
                self._end(rid, aborted=True)  # retracted, and dropped from the queue
            else:
                self._move(req)

    def _move(self, req: Any) -> None:
        """Preempt a request whose row has changed, as it was retracted.  A finished request keeps its slot."""
        if req.finished() or req.rid not in self._slots:
            return
        if req.kv.req_pool_idx != self._slots.slot_of(req.rid):
            self._slots.preempt(req.rid)

    def _end(self, rid: str, *, aborted: bool) -> None:
        req, _ = self._held.pop(rid)
        self._slots.finish(rid, aborted=aborted, visible=visible_tokens(req))
        self._forget(rid)

    def _settle(self, req: Any) -> None:
        text = prompt_of(req)
        described = self._describe(req, text)
        if self._slots.is_waiting(req.rid):
            self._slots.resume(req.rid, described.tokens)
        else:
            self._slots.start(described)
        self._write(self._slots.slot_of(req.rid), text)

    def _slot(self, rid: str) -> int:
        return int(self._held[rid][0].kv.req_pool_idx)


def _is_abort(reason: Any) -> bool:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return isinstance(reason, FINISH_ABORT)
