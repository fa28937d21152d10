"""Host facts of a batch's rows, reused from step to step, and the rows of a step that could not draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specplug.runtime.slots import SlotAllocator
from specplug.types.batch import Barrier
from specplug.types.request import Request


class RowFacts:
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
        """Return whether these facts still hold for the rows `names`, a list of request ids."""
        return self.are_current(allocator) and self._names == names

    def are_current(self, allocator: SlotAllocator) -> bool:
        """Return whether no slot has changed hands since."""
        return self._version == allocator.slots.version


class LateRows:
    """Request ids, to be iterated over once the step has run.  Pickling gives a tuple of them.

    Args:
        names: the request id of each row.

    Attributes:
        flags: [B] int32, which the step's host function sets: 1 for each row that could not draft.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self.flags = names, np.zeros(len(names), np.int32)

    def __iter__(self) -> Iterator[str]:
        return iter([self._names[row] for row in np.flatnonzero(self.flags)])

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)
