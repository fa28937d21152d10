"""Running requests of a replay, their texts so far, and the batches that present them to the pipeline.

Tokens that the target has not emitted yet are poisoned, so a proposer that reads past its context gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.replay.items import Ids
from specplug.types.batch import EngineBatch
from specplug.types.plan import RequestStats
from specplug.types.request import Request
from specplug.types.verdict import Outcome

POISON = 1_000_000_007
"""Fill value for undefined entries of the token table: an int32 that is an id of no vocabulary."""

PLENTY = 1 << 20
"""A remaining length that never limits a draft, so that it does not reveal where an output ends."""


class Occupant:
    """A running request: its slot, and its statistics so far."""

    __slots__ = ("accepted", "generation", "length", "rejected", "request", "slot", "verified")

    def __init__(self, slot: int, generation: int, request: Request) -> None:
        self.slot, self.generation, self.request = slot, generation, request
        self.length = self.verified = self.accepted = self.rejected = 0

    def stats(self) -> RequestStats:
        """Return the statistics for planners."""
        counts = self.verified, self.accepted, self.rejected
        return RequestStats(self.request.request_id, self.length, PLENTY, None, *counts)


class ReplaySlots:
    """The token table of S slots and L tokens, and the running requests in order of arrival.

    Attributes:
        taken: the occupants of the slots in use, which are the rows of a batch.
    """

    def __init__(self, max_slots: int, max_length: int, vocab_size: int) -> None:
        self._table = torch.full((max_slots, max_length), POISON, dtype=torch.int32)
        self._texts = self._table.numpy()
        self._generations = [0] * max_slots
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        """Free all slots; their generations continue."""
        self.taken: list[Occupant] = []
        self._view: View | None = None
        self._resets: list[int] = []

    def take(self, slot: int, request: Request) -> Occupant:
        """Assign a slot to a request that has no text yet, as the last row."""
        self._generations[slot] += 1
        occupant = Occupant(slot, self._generations[slot], request)
        self._texts[slot].fill(POISON)
        self.taken.append(occupant)
        self._view = None
        self._resets.append(slot)
        return occupant

    def leave(self, occupant: Occupant) -> None:
        """Free an occupant's slot."""
        self.taken.remove(occupant)
        self._view = None

    def at(self, slot: int) -> Occupant:
        """Return the occupant of a slot."""
        return next(occupant for occupant in self.taken if occupant.slot == slot)

    def append(self, occupant: Occupant, tokens: Sequence[int] | Ids) -> None:
        """Append tokens to an occupant's text.

        Raises:
            EngineError: the text does not fit.
        """
        stop = occupant.length + len(tokens)
        if stop > self._texts.shape[1]:
            raise EngineError.build(
                "the text does not fit",
                who=repr(occupant.request.request_id),
                found=f"{stop} tokens",
                expected=f"at most {self._texts.shape[1]}",
            )
        self._texts[occupant.slot, occupant.length : stop] = tokens
        occupant.length = stop

    def view(self) -> View:
        """Return the current batch of all running requests."""
        if self._view is None:
            self._view = View(self._table, self._vocab_size, self.taken)
        return self._view.update()

    def alone(self, occupant: Occupant) -> EngineBatch:
        """Return the batch of one occupant, with its slot's reset if that is not reported yet."""
        return View(self._table, self._vocab_size, [occupant]).batch(self.pop_resets([occupant]))

    def pop_resets(self, occupants: Sequence[Occupant]) -> tuple[int, ...]:
        """Return the occupants' slots that have a new occupant since the last call."""
        if not self._resets:
            return ()
        here = {occupant.slot for occupant in occupants}
        popped = tuple(sorted(here.intersection(self._resets)))
        self._resets = [slot for slot in self._resets if slot not in here]
        return popped


class View:
    """The batch of some occupants; tensors are built once, and changes are written through numpy, which is cheaper."""

    def __init__(self, table: Tensor, vocab_size: int, occupants: Sequence[Occupant]) -> None:
        self._occupants = list(occupants)
        count = len(self._occupants)
        slots = torch.tensor([occupant.slot for occupant in occupants], dtype=torch.int64)
        changing = torch.zeros(4, count, dtype=torch.int32)
        self._numbers = changing.numpy()
        self._outcome = Outcome(verified=changing[1], accepted=changing[2], emitted=changing[3])
        self._batch = EngineBatch(
            slots=slots,
            generations=torch.tensor([occupant.generation for occupant in occupants], dtype=torch.int64),
            rows=slots,
            tokens=table,
            lengths=changing[0],
            sampled=torch.ones(count, dtype=torch.bool),
            room=torch.full((count,), PLENTY, dtype=torch.int32),
            temperature=torch.zeros(count, dtype=torch.float32),
            grammar=torch.zeros(count, dtype=torch.bool),
            vocab_size=vocab_size,
            request_ids=tuple(occupant.request.request_id for occupant in occupants),
            requests=tuple(occupant.request for occupant in occupants),
        )
        self.update()

    def update(self) -> View:
        """Bring the lengths up to date."""
        self._numbers[0] = [occupant.length for occupant in self._occupants]
        return self

    def batch(self, reset_slots: tuple[int, ...]) -> EngineBatch:
        """Return the batch for the pipeline, which shares the view's tensors."""
        return replace(self._batch, reset_slots=reset_slots) if reset_slots else self._batch

    def outcome(self, verified: Sequence[int], accepted: Sequence[int], emitted: Sequence[int]) -> Outcome:
        """Return the outcome of the rows' drafts, which shares the view's tensors."""
        numbers = self._numbers
        numbers[1], numbers[2], numbers[3] = verified, accepted, emitted
        return self._outcome
