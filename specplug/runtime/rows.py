"""What a batch's rows have in common from step to step: kept while nobody comes, goes or changes places."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.runtime.slot_allocator import SlotAllocator
from specplug.types.batch import Barrier
from specplug.types.request import Request


class RowFacts:
    """Host facts of B rows, in batch order: those of an engine's rows whose requests have a place.

    Attributes:
        kept: which of the engine's rows they are; None where they are all.
        names: request ids.
        slots: of each row.
        requests: of each row.
        barriers: spans of the rows that are no text.
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
        """Whether these are still the facts of the rows `names`, a list."""
        return self._version == allocator.slots.version and self._names == names
