"""The token table: every running request's text in a slot of its own, and the view that proposers get of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specplug.types.batch import BatchView, Residency

if TYPE_CHECKING:
    from specplug_transformers.state import RequestState


class TokenTable:
    """[S, L] int32 tokens by slot, on the model's device.

    Slots are reused, lowest first; each new tenant begins a new generation of its slot.
    """

    def __init__(self, max_slots: int, max_length: int, vocab_size: int, device: torch.device) -> None:
        self._tokens = torch.zeros(max_slots, max_length, dtype=torch.int32, device=device)
        self._free = list(range(max_slots))
        self._generations = [0] * max_slots
        self._reset: list[int] = []
        self._vocab_size = vocab_size
        self._residency = Residency.HOST if device.type == "cpu" else Residency.DEVICE

    @property
    def has_free_slot(self) -> bool:
        """Whether another request can be taken in."""
        return bool(self._free)

    def take_slot(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Put a request's text into a free slot; return (slot, generation)."""
        slot = self._free.pop(0)
        self._generations[slot] += 1
        self._reset.append(slot)
        self.write(slot, 0, token_ids)
        return slot, self._generations[slot]

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)
        self._free.sort()

    def write(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Write tokens of one request from position `start`."""
        ids = torch.tensor(token_ids, dtype=torch.int32, device=self._tokens.device)
        self._tokens[slot, start : start + len(token_ids)] = ids

    def view(self, states: Sequence[RequestState]) -> BatchView:
        """Return the batch of these requests, in order.  `num_new` is filled in by the pipeline."""
        device = self._tokens.device
        slots = torch.tensor([state.slot for state in states], dtype=torch.int64, device=device)
        lengths = torch.tensor([state.length for state in states], dtype=torch.int32, device=device)
        reset, self._reset = tuple(self._reset), []
        return BatchView(
            slots=slots,
            generations=torch.tensor([state.generation for state in states], dtype=torch.int64, device=device),
            rows=slots,
            tokens=self._tokens,
            lengths=lengths,
            num_new=torch.zeros_like(lengths),
            sampled=torch.ones(len(states), dtype=torch.bool, device=device),
            room=torch.tensor([state.room for state in states], dtype=torch.int32, device=device),
            temperature=torch.tensor([state.params.temperature for state in states], device=device),
            grammar=torch.tensor([state.request.grammar for state in states], dtype=torch.bool, device=device),
            vocab_size=self._vocab_size,
            residency=self._residency,
            reset_slots=reset,
            request_ids=tuple(state.request.request_id for state in states),
            requests=tuple(state.request for state in states),
        )
