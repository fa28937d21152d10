"""Who comes and goes, read off SGLang's own requests: its worker is not told.

A request that finished, was aborted or was retracted just does not come again.  So the worker keeps hold of those that
it serves, and looks at them whenever a batch holds others than the one before it, and when the engine idles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specplug.runtime.running_request import RunningRequest
from specplug.runtime.slot_allocator import SlotAllocator
from specplug_sglang.scheduler.endings import visible_tokens


class Arrivals:
    """Keeps `SlotAllocator` true to SGLang's requests.

    Args:
        allocator: told who starts, resumes, is preempted and ends; its slots are rows of SGLang's request pool.
        describe: makes a `RunningRequest` of a `Req`.
        write: called with a `Req` and its slot whenever it gets a place, to write its text.
        forget: called with the id of every request that has ended, also of those that had no place at that time.

    Attributes:
        queues: called with a `Req` that has no row of the pool, returns whether it waits for one.
    """

    def __init__(
        self,
        allocator: SlotAllocator,
        describe: Callable[[Any], RunningRequest],
        write: Callable[[Any, int], None],
        forget: Callable[[str], None],
    ) -> None:
        self._slots, self._describe, self._write, self._forget = allocator, describe, write, forget
        self._held: dict[str, tuple[Any, int]] = {}  # with the times that it had been retracted
        self.queues: Callable[[Any], bool] = lambda req: True
        allocator.engine_slot = self._slot

    def __len__(self) -> int:
        """How many requests are running or may resume."""
        return len(self._held)

    def admit(self, reqs: Sequence[Any]) -> None:
        """Give the requests of a batch their places; those that have them keep them."""
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
        """Let those go that will not come again, or not soon.

        Args:
            batch: the requests of the step to come.  Some of them may have ended meanwhile: where SGLang takes in the
                last results between scheduling a step and running it.  They go with the next one.
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
        """Take a request's place if it was retracted; one that has finished lies where it lay."""
        if req.finished() or req.rid not in self._slots:
            return
        if req.kv.req_pool_idx != self._slots.slot_of(req.rid):
            self._slots.preempt(req.rid)

    def _end(self, rid: str, *, aborted: bool) -> None:
        req, _ = self._held.pop(rid)
        self._slots.finish(rid, aborted=aborted, visible=visible_tokens(req))
        self._forget(rid)

    def _settle(self, req: Any) -> None:
        if self._slots.is_waiting(req.rid):
            self._slots.resume(req.rid)
        else:
            self._slots.start(self._describe(req))
        self._write(req, self._slots.slot_of(req.rid))

    def _slot(self, rid: str) -> int:
        return int(self._held[rid][0].kv.req_pool_idx)


def _is_abort(reason: Any) -> bool:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return isinstance(reason, FINISH_ABORT)
