"""The token table, which holds the token ids of every running request, one slot each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch


class TokenTable:
    """Tokens by slot.  Slots are reused, lowest first; each new request begins a new generation of its slot.

    Attributes:
        tokens: [S, L] int32 on the model's device; entries after a request's text are undefined.
        vocab_size: ids are in [0, vocab_size).
    """

    def __init__(self, max_slots: int, max_length: int, vocab_size: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_slots, max_length, dtype=torch.int32, device=device)
        self.vocab_size = vocab_size
        self._free = list(range(max_slots))
        self._generations = [0] * max_slots
        self._reset: list[int] = []

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def take_slot(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Write a request's text into a free slot; return (slot, generation)."""
        slot = heapq.heappop(self._free)
        self._generations[slot] += 1
        self._reset.append(slot)
        self.write(slot, 0, token_ids)
        return slot, self._generations[slot]

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        heapq.heappush(self._free, slot)

    def take_resets(self) -> tuple[int, ...]:
        """Return the slots that began a new generation since the last call."""
        reset, self._reset = tuple(self._reset), []
        return reset

    def write(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Write tokens of one request from position `start`."""
        ids = torch.tensor(token_ids, dtype=torch.int32, device=self.tokens.device)
        self.tokens[slot, start : start + len(token_ids)] = ids
