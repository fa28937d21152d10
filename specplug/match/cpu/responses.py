"""The response memory: a bounded store of finished responses, separated by owner; the oldest are dropped first."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.locks import make_flag, release, take
from specplug.match.cpu.recency import GRANULE, allow_visits, insert
from specplug.match.cpu.records import record
from specplug.match.cpu.texts import MOST_CANDIDATES, NO_TEXT, Tokens

MOST_PLACES = 2**30
"""Places are int32, so a memory is cleared after this many tokens."""

PIECE = 64
"""Tokens that are added at a time, in some tens of microseconds."""

FEW_OWNERS = 1 << 12
"""Number of owner names that are kept even if they own nothing."""


class Responses:
    """A ring of C tokens with one recency tree over it, whose texts are separated by owner.

    A token takes 12 bytes, 1 for its share of the roots and 1/4 for the owner's number.

    Attributes:
        capacity: C, a power of two; the newest C tokens are kept.
        text: [C] int32, token i at i modulo C.
        children: [2 C] int32, see `recency`.
        owners: [C / `GRANULE`] int32.
        flag: guards all of it, see `specplug.match.cpu.locks`.
        record: the record that kernels take.
    """

    def __init__(self, capacity: int, cap: int) -> None:
        """Create an empty memory of at least `capacity` tokens; `cap`: the most tokens compared for a match."""
        size = 16 * GRANULE
        while size < max(capacity, 16 * cap):
            size *= 2
        self.capacity, self._cap = size, cap
        self._owners: dict[str, int] = {}
        self._given, self._most_owners = 0, FEW_OWNERS
        self.text, self.owners = np.full(size, NO_TEXT, np.int32), np.zeros(size // GRANULE, np.int32)
        self.children = np.zeros(2 * size, np.int32)
        self._heads, self._ends = np.zeros(size // 4, np.int32), np.zeros(1, np.int64)
        self.flag = make_flag()
        self.record = record(
            text=self.text,
            children=self.children,
            heads=self._heads,
            owners=self.owners,
            ends=self._ends,
            places=np.zeros(MOST_CANDIDATES, np.int32),
            match_lengths=np.zeros(MOST_CANDIDATES, np.int32),
            budget=np.zeros(1, np.int64),
            flag=self.flag,
        )

    def owner(self, key: str) -> int:
        """Return the number of the owner `key`; numbers start at 1 and are never reused.

        Owners without stored text are forgotten once there are many; they then get a new number.
        """
        number = self._owners.get(key)
        if number is None:
            if len(self._owners) >= self._most_owners:
                self._forget_owners()
            self._given += 1
            number = self._owners[key] = self._given
        return number

    def _forget_owners(self) -> None:
        """Keep only owners of a granule; the next check is due when there are twice as many."""
        owning = set(np.unique(self.owners).tolist())
        self._owners = {key: number for key, number in self._owners.items() if number in owning}
        self._most_owners = max(FEW_OWNERS, 2 * len(self._owners))

    def add(self, owner: int, context: Tokens, response: Tokens) -> None:
        """Store a response, in pieces, for each of which the flag is taken.

        Args:
            owner: its owner.
            context: [n] int32, the text before it, which is matched but never drafted.
            response: [m] int32; if it is longer than half the memory, only its end is kept.
        """
        response = response[-(self.capacity // 2) :]
        text = np.concatenate((context[-self._cap :], response))
        if self._ends[0] + self.capacity > MOST_PLACES:
            self.clear()
        stop = append(self.record, owner, text, len(response))
        for first in range(stop - len(response) + 1, stop, PIECE):
            plant(self.record, first, min(first + PIECE, stop), stop, self._cap)

    def clear(self) -> None:
        """Remove everything."""
        clear(self.record)


@compiled
def clear(memory: Any) -> None:
    """Remove all texts."""
    take(memory.flag)
    memory.heads[:] = 0
    memory.ends[0] = 0
    release(memory.flag)


@compiled
def append(memory: Any, owner: int, tokens: Any, fresh: int) -> int:
    """Append one text of `tokens` [n] int32, of which the last `fresh` may be drafted; return its end.

    It is found from where `plant` adds its places.
    """
    take(memory.flag)
    mask = memory.text.size - 1
    start = (memory.ends[0] // GRANULE + 1) * GRANULE  # at least one NO_TEXT token separates two texts
    stop = start + tokens.size
    for place in range(memory.ends[0], start):
        memory.text[place & mask] = NO_TEXT
    for k in range(tokens.size):
        memory.text[(start + k) & mask] = tokens[k]
    for granule in range(start // GRANULE, stop // GRANULE + 1):
        memory.owners[granule & (memory.owners.size - 1)] = owner
    memory.text[stop & mask] = NO_TEXT
    memory.ends[0] = stop
    allow_visits(memory.budget, fresh)
    release(memory.flag)
    return stop  # type: ignore[no-any-return]


@compiled
def plant(memory: Any, first: int, last: int, stop: int, cap: int) -> None:
    """Add the places from `first` up to `last`, exclusive, of a text that ends at `stop`."""
    take(memory.flag)
    mask, oldest = memory.text.size - 1, max(stop + 1 - memory.text.size, 0)
    for place in range(first, last):
        insert(
            memory.text,
            mask,
            oldest,
            memory.owners,
            memory.heads,
            memory.children,
            place,
            cap,
            memory.places,
            memory.match_lengths,
            memory.budget,
        )
    release(memory.flag)
