"""Rows: what the host knows of the rows of one batch, kept while the same requests hold the same slots."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.steps.slots import SlotAllocator
from specplug.types.batch import Barrier
from specplug.types.request import Request


class Rows:
    """Host facts of B rows, in batch order: the engine's rows whose requests have a slot.

    Attributes:
        kept: indices of these rows among the engine's rows; None if all rows are kept.
        names: request id of each row.
        slots: slot of each row.
        requests: request of each row.
        barriers: spans of the rows that are not text.
    """

    def __init__(self, allocator: SlotAllocator, names: Sequence[str]) -> None:
        self._version = allocator.slots.version
        self._names = list(names)
        kept = [row for row, name in enumerate(names) if name not in allocator.ignored]
        self.kept = None if len(kept) == len(names) else kept
        self.names = tuple(names[row] for row in kept)
        self.slots = [allocator.slot_of(name) for name in self.names]
        occupants = [allocator.slots.occupants[slot] for slot in self.slots]
        self.requests: tuple[Request, ...] = tuple(occupant.request for occupant in occupants)
        self.barriers = tuple(
            Barrier(row, *span) for row, occupant in enumerate(occupants) for span in occupant.barriers
        )

    def hold(self, allocator: SlotAllocator, names: Sequence[str]) -> bool:
        """Return whether no slot has changed hands since, and the engine's rows are still `names`, a list."""
        return self._version == allocator.slots.version and self._names == names
