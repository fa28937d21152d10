"""Per-slot facts for drafting, on the host and as one table on the device.

Slots change only when requests start, end or resume, so the device table is written only at those steps and gathered by
slot at every step.  Nothing is read back.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from specplug.runtime.running_request import MAX_STOP_IDS, RunningRequest
from specplug.types.request import RequestOptions

NO_CAP = 1 << 30
_GENERATION, _END, _CAP, _GRAMMAR, _VERIFIER, _STOPS = range(6)


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The table's rows of one batch, in its order; all on the device.

    Attributes:
        generations: [B] int64.
        ends: [B] int32, maximum length of prompt and output together, in tokens.
        caps: [B] int32, most draft tokens per step that the request allows; `NO_CAP` if it sets no limit.
        grammar: [B] bool, whether the request has a grammar.
        verifier: [B] bool, whether the request names the server's verifier.
        acceptance_threshold: [B] float32, the request's threshold for it; NaN for none.
        stop_ids: [B, M] int64, padded with -1.
    """

    generations: Tensor
    ends: Tensor
    caps: Tensor
    grammar: Tensor
    verifier: Tensor
    acceptance_threshold: Tensor
    stop_ids: Tensor


class SlotTable:
    """Slots and their occupants.

    Args:
        max_slots: S, the most requests at a time.
        device: device of the table, [S, 5 + M] int64.

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
        self.table = torch.zeros(max_slots, _STOPS + MAX_STOP_IDS, dtype=torch.int64, device=device)
        self._device = device
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

    def rows(self, slots: Tensor) -> SlotRows:
        """Gather the rows of `slots` [B]."""
        self.flush()
        rows = self.table[slots.long()]
        return SlotRows(
            generations=rows[:, _GENERATION],
            ends=rows[:, _END].int(),
            caps=rows[:, _CAP].int(),
            grammar=rows[:, _GRAMMAR].bool(),
            verifier=rows[:, _VERIFIER].bool(),
            acceptance_threshold=rows[:, _VERIFIER].int().view(torch.float32),
            stop_ids=rows[:, _STOPS:],
        )

    def flush(self) -> None:
        """Write the changed rows to the device: two small asynchronous copies from memory that is never modified."""
        if not self._changed:
            return
        slots = sorted(slot for slot in self._changed if slot in self.occupants)
        self._changed.clear()
        if slots:
            self.table[self._on_device(slots)] = self._on_device([self._row(slot) for slot in slots])

    def _row(self, slot: int) -> list[int]:
        occupant = self.occupants[slot]
        request, cap = occupant.request, occupant.request.options.cap
        padding = [-1] * (MAX_STOP_IDS - len(occupant.stop_ids))
        head = [self.generations[slot], occupant.end, NO_CAP if cap is None else cap, int(request.grammar)]
        return [*head, _verifier_of(request.options), *occupant.stop_ids, *padding]

    def _on_device(self, values: list[int] | list[list[int]]) -> Tensor:
        tensor = torch.tensor(values, dtype=torch.int64)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _verifier_of(options: RequestOptions) -> int:
    """Return 0 for requests that name no verifier, else the bits of the float32 threshold, NaN for none."""
    if options.verifier is None:
        return 0
    threshold = math.nan if options.acceptance_threshold is None else options.acceptance_threshold
    return int.from_bytes(struct.pack("<f", threshold), "little", signed=True)
