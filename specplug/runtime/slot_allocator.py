"""Slot allocator: assigns running requests to slots and reports each start, preemption, resumption and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from specplug.runtime.running_request import RunningRequest, Tokens
from specplug.runtime.slots import SlotTable
from specplug.types.request import Lifecycle, Request, RequestEvent


class SlotAllocator:
    """The requests that one worker holds, each in a slot.

    Args:
        max_slots: S, the most requests at a time.
        device: where the slots' table lies.
        notify: called with every event, after a slot is taken and before it is freed.

    Attributes:
        slots: the table of slots and their occupants.
        engine_slot: returns the engine's own slot for a request id; None if this allocator assigns the slots.
        ignored: ids of running requests that get no slot and no events.
    """

    def __init__(self, max_slots: int, device: torch.device, notify: Callable[[RequestEvent], None]) -> None:
        self.slots = SlotTable(max_slots, device)
        self.engine_slot: Callable[[str], int] | None = None
        self.ignored: set[str] = set()
        self._notify = notify
        self._slots: dict[str, int] = {}
        self._waiting: dict[str, RunningRequest] = {}
        self._free = list(range(max_slots - 1, -1, -1))

    def __len__(self) -> int:
        """Return the number of requests that hold a slot."""
        return len(self._slots)

    def __contains__(self, request_id: str) -> bool:
        """Return whether the request holds a slot."""
        return request_id in self._slots

    def status(self) -> dict[str, int]:
        """Return how many slots there are and how many are occupied, and how many requests are preempted."""
        return {
            "total": len(self.slots.generations),
            "occupied": len(self._slots),
            "preempted": len(self._waiting),
        }

    def is_waiting(self, request_id: str) -> bool:
        """Return whether the request was preempted and has not resumed."""
        return request_id in self._waiting

    def slot_of(self, request_id: str) -> int:
        """Return a running request's slot."""
        return self._slots[request_id]

    def request_of(self, request_id: str) -> Request:
        """Return a running request's description."""
        return self.slots.occupants[self._slots[request_id]].request

    def start(self, occupant: RunningRequest) -> None:
        """Assign a slot to a new request, or a new slot generation to a known one with a new prompt."""
        name = occupant.request.request_id
        self.ignored.discard(name)
        kind: Lifecycle = Lifecycle.UPDATED if name in self._slots else Lifecycle.STARTED
        if name in self._slots:
            self._vacate(name)
        self._settle(kind, occupant)

    def ignore(self, request_id: str) -> None:
        """Give a new request no slot and report no events for it; it is in no batch until it finishes."""
        self.ignored.add(request_id)

    def resume(self, request_id: str, tokens: Tokens = ()) -> None:
        """Assign a slot to a preempted request; `tokens`: see `RunningRequest`."""
        occupant = self._waiting.pop(request_id, None)
        if occupant is not None:
            self._settle(Lifecycle.RESUMED, replace(occupant, tokens=tokens))

    def preempt(self, request_id: str) -> None:
        """Free the slot of a request that may resume later."""
        if request_id in self._slots:
            self._waiting[request_id] = self._leave(request_id, Lifecycle.PREEMPTED)

    def finish(self, request_id: str, *, aborted: bool, visible: int | None = None) -> None:
        """Drop a request.  The client saw at most `visible` of its tokens; None if that is unknown."""
        self._waiting.pop(request_id, None)
        self.ignored.discard(request_id)
        if request_id in self._slots:
            self._leave(request_id, Lifecycle.ABORTED if aborted else Lifecycle.FINISHED, visible)

    def _settle(self, kind: Lifecycle, occupant: RunningRequest) -> None:
        name = occupant.request.request_id
        slot = self._free.pop() if self.engine_slot is None else self.engine_slot(name)
        self._slots[name] = slot
        self._report(kind, occupant, slot, self.slots.take(slot, occupant))

    def _leave(self, name: str, kind: Lifecycle, visible: int | None = None) -> RunningRequest:
        slot = self._slots[name]
        occupant = self.slots.occupants[slot]
        self._report(kind, occupant, slot, self.slots.generations[slot], visible)
        self._vacate(name)
        return occupant

    def _vacate(self, name: str) -> None:
        slot = self._slots.pop(name)
        self.slots.free(slot)
        if self.engine_slot is None:
            self._free.append(slot)

    def _report(
        self, kind: Lifecycle, occupant: RunningRequest, slot: int, generation: int, visible: int | None = None
    ) -> None:
        self._notify(RequestEvent(kind, occupant.request, slot, generation, visible))
