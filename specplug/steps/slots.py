"""Slots of running requests: their assignment, and facts for drafting by slot, and by row, on host and device.

Slots change only when requests start, end or resume, so the device table is written only at those steps and gathered by
slot at every step.  Nothing is read back.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.types.request import Lifecycle, Request, RequestEvent, RequestOptions
from specplug.types.tensors import to_device

Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]

MAX_STOP_IDS = 8
"""Stop ids tracked per request on the device; a stop on any further id is detected one step late."""


Span = tuple[int, int]
"""Start and end of tokens that are not text."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that a worker holds.

    Attributes:
        request: the request as plug-ins see it.
        end: maximum length of prompt and output together, in tokens.
        stop_ids: the first `MAX_STOP_IDS` token ids that end it.
        barriers: spans that are not text.
        tokens: the prompt, and the output so far of a request that resumes, if the engine has them on the host.
    """

    request: Request
    end: int
    stop_ids: tuple[int, ...]
    barriers: tuple[Span, ...] = ()
    tokens: Tokens = ()


NO_CAP = 1 << 30

GENERATION, END, CAP, GRAMMAR, VERIFIER, STOP_IDS = range(6)
"""Columns of the slot table; stop ids begin at the last one."""


class SlotTable:
    """Slots and their occupants.

    Args:
        max_slots: S, the most requests at a time.
        device: device of the table, [S, 5 + M] int64, whose columns are named above.

    Attributes:
        occupants: by slot, the request that holds it.
        generations: by slot (host); a slot's first occupant has generation 1.
        table: the table; `flush` brings it up to date.
        version: incremented when an occupant changes, so that data derived from the table can be cached between
            changes.
    """

    def __init__(self, max_slots: int, device: torch.device) -> None:
        self.occupants: dict[int, RunningRequest] = {}
        self.generations = [0] * max_slots
        self.version = 0
        self.table = torch.zeros(max_slots, STOP_IDS + MAX_STOP_IDS, dtype=torch.int64, device=device)
        self._changed: set[int] = set()
        self._reset: set[int] = set()

    def take(self, slot: int, occupant: RunningRequest) -> int:
        """Give a slot to a request; return the slot's new generation."""
        self.occupants[slot] = occupant
        self.version += 1
        self.generations[slot] += 1
        self._changed.add(slot)
        self._reset.add(slot)
        return self.generations[slot]

    def free(self, slot: int) -> None:
        """Remove the slot's occupant."""
        self.occupants.pop(slot, None)
        self.version += 1

    def take_resets(self) -> tuple[int, ...]:
        """Return the slots that began a new generation since the last call."""
        if not self._reset:
            return ()
        reset = tuple(sorted(self._reset))
        self._reset.clear()
        return reset

    def verifiers(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether the request in each of `slots` [B] names the server's verifier, and its threshold for that.

        Returns:
            [B] bool and [B] float32, NaN for none.
        """
        self.flush()
        bits = self.table[slots.long(), VERIFIER].int()
        return bits != 0, bits.view(torch.float32)

    def flush(self) -> None:
        """Write the changed rows to the device, in one copy that nothing waits for."""
        if not self._changed:
            return
        slots = sorted(slot for slot in self._changed if slot in self.occupants)
        self._changed.clear()
        if slots:
            rows = [torch.tensor(it) for it in (slots, [self._row(slot) for slot in slots])]
            where, facts = to_device(rows, self.table.device)
            self.table[where] = facts

    def _row(self, slot: int) -> list[int]:
        occupant = self.occupants[slot]
        request = occupant.request
        cap = occupant.request.options.cap
        padding = [-1] * (MAX_STOP_IDS - len(occupant.stop_ids))
        head = [self.generations[slot], occupant.end, NO_CAP if cap is None else cap, int(request.grammar)]
        return [*head, _verifier_of(request.options), *occupant.stop_ids, *padding]


def _verifier_of(options: RequestOptions) -> int:
    """Return 0 for requests that name no verifier, else the bits of the float32 threshold, NaN for none."""
    if options.verifier is None:
        return 0
    threshold = math.nan if options.acceptance_threshold is None else options.acceptance_threshold
    return int.from_bytes(struct.pack("<f", threshold), "little", signed=True)


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
        occupied = len(self._slots)
        preempted = len(self._waiting)
        return {"total": len(self.slots.generations), "occupied": occupied, "preempted": preempted}

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
        kind: Lifecycle = Lifecycle.STARTED
        if name in self._slots:
            kind = Lifecycle.UPDATED
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
        self._notify(RequestEvent(kind, occupant.request, slot, self.slots.take(slot, occupant)))

    def _leave(self, name: str, kind: Lifecycle, visible: int | None = None) -> RunningRequest:
        slot = self._slots[name]
        occupant = self.slots.occupants[slot]
        self._notify(RequestEvent(kind, occupant.request, slot, self.slots.generations[slot], visible))
        self._vacate(name)
        return occupant

    def _vacate(self, name: str) -> None:
        slot = self._slots.pop(name)
        self.slots.free(slot)
        if self.engine_slot is None:
            self._free.append(slot)
