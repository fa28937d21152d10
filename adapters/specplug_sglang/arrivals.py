"""Who comes and goes, read off SGLang's own requests: its worker is not told.

A request that finished, was aborted or was retracted just does not come again.  So the worker keeps hold of those that
it serves, and looks at them whenever a batch holds others than the one before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from specplug.serving.places import Places
from specplug.serving.residents import Resident


class Arrivals:
    """Keeps `Places` true to SGLang's requests.

    Args:
        places: told who starts, resumes, is preempted and ends; its slots are rows of SGLang's request pool.
        describe: makes a `Resident` of a `Req`.
        write: called with a `Req` and its slot whenever it gets a place, to write its text.
    """

    def __init__(
        self, places: Places, describe: Callable[[Any], Resident], write: Callable[[Any, int], None]
    ) -> None:
        self._places, self._describe, self._write = places, describe, write
        self._held: dict[str, tuple[weakref.ref[Any], int]] = {}  # with the times that it had been retracted
        places.place_of = self._slot

    def admit(self, reqs: Sequence[Any]) -> None:
        """Give the requests of a prefill batch their places; those that continue a prompt have them."""
        self.sweep()
        for req in reqs:
            held = self._held.get(req.rid)
            if held is not None and (held[0]() is not req):
                self.end(req.rid, aborted=True)  # the same id, another request
            elif held is not None and held[1] != req.retraction_count:
                self._places.preempt(req.rid)
            self._held[req.rid] = (weakref.ref(req), req.retraction_count)
            if req.rid not in self._places:
                self._settle(req)

    def sweep(self) -> None:
        """Let those go that will not come again, or not soon."""
        for rid, (ref, _) in list(self._held.items()):
            req = ref()
            if req is None or req.finished():
                self.end(rid, aborted=req is None or _is_abort(req.finished_reason))
            elif rid in self._places and req.kv.req_pool_idx != self._places.slot_of(rid):
                self._places.preempt(rid)

    def finished(self, rid: str) -> None:
        """Take note that SGLang has ended a request."""
        held = self._held.get(rid)
        if held is not None:
            req = held[0]()
            self.end(rid, aborted=req is None or _is_abort(req.finished_reason))

    def end(self, rid: str, *, aborted: bool) -> None:
        """Forget a request."""
        self._held.pop(rid, None)
        self._places.finish(rid, aborted=aborted)

    def _settle(self, req: Any) -> None:
        if self._places.is_waiting(req.rid):
            self._places.resume(req.rid)
        else:
            self._places.start(self._describe(req))
        self._write(req, self._places.slot_of(req.rid))

    def _slot(self, rid: str) -> int:
        req = self._held[rid][0]()
        assert req is not None
        return int(req.kv.req_pool_idx)


def _is_abort(reason: Any) -> bool:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return isinstance(reason, FINISH_ABORT)
