"""Running requests of a replay, and their texts so far.

Tokens that the target has not emitted yet are poisoned, so a proposer that reads past its context gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specplug.errors import EngineError
from specplug.steps.draft_stage import DraftStage
from specplug.steps.slots import RunningRequest, SlotAllocator
from specplug.tools.replay.items import Ids
from specplug.types.plan import RequestStats
from specplug.types.request import Request
from specplug.types.step import EngineBatch, Outcome

POISON = 1_000_000_007
"""Fill value for undefined entries of the token table: an int32 that is an id of no vocabulary."""

PLENTY = 1 << 20
"""A remaining length that never limits a draft, so that it does not reveal where an output ends."""

_NO_END = 1 << 30
_CPU = torch.device("cpu")


class Occupant:
    """A running request: its slot, the newest step's counts, and its statistics so far."""

    __slots__ = ("accepted", "emitted", "length", "rejected", "request", "slot", "tried", "verified")

    def __init__(self, slot: int, request: Request) -> None:
        self.slot = slot
        self.request = request
        self.length = self.verified = self.accepted = self.rejected = 0
        # by the newest step; the first token comes from prefill
        self.tried = 0
        self.emitted = 1

    def stats(self) -> RequestStats:
        """Return the statistics for planners."""
        counts = self.verified, self.accepted, self.rejected
        return RequestStats(self.request.request_id, self.length, PLENTY, None, *counts)


class ReplaySlots:
    """The token table of S slots and L tokens, and the running requests in order of arrival.

    The occupants of the slots `taken` are the rows of a batch.
    """

    def __init__(self, stage: DraftStage, max_slots: int, max_length: int, vocab_size: int) -> None:
        self.taken: list[Occupant] = []
        self._stage = stage
        self._vocab_size = vocab_size
        self._tokens = torch.full((max_slots, max_length), POISON, dtype=torch.int32)
        self._texts = self._tokens.numpy()
        self._slot_of: dict[str, int] = {}
        self._allocator = SlotAllocator(max_slots, _CPU, lambda event: stage.on_event(event))
        self._allocator.engine_slot = self._slot_of.__getitem__

    def start(self, slot: int, request: Request, prompt: Ids) -> Occupant:
        """Assign a slot to a request, as the last row; one that shares its id with another gets an id of its own."""
        if request.request_id in self._slot_of:
            request = replace(request, request_id=f"{request.request_id} in slot {slot}")
        occupant = Occupant(slot, request)
        self.taken.append(occupant)
        self._texts[slot] = POISON
        self.append(occupant, prompt)
        self._slot_of[request.request_id] = slot
        self._allocator.start(RunningRequest(request, _NO_END, stop_ids=(), tokens=prompt))
        return occupant

    def finish(self, occupant: Occupant) -> None:
        """End a request.  The proposer sees its last tokens first, as in engines that draft after every step."""
        self._stage.ingest(self.batch([occupant]))
        self._allocator.finish(occupant.request.request_id, aborted=False, visible=occupant.length)
        self.taken.remove(occupant)
        del self._slot_of[occupant.request.request_id]

    def at(self, slot: int) -> Occupant:
        """Return the occupant of a slot."""
        return next(occupant for occupant in self.taken if occupant.slot == slot)

    def append(self, occupant: Occupant, tokens: Sequence[int] | Ids) -> None:
        """Append tokens to an occupant's text. A text that does not fit raises `EngineError`."""
        stop = occupant.length + len(tokens)
        if stop > self._texts.shape[1]:
            who = repr(occupant.request.request_id)
            expected = f"at most {self._texts.shape[1]}"
            raise EngineError.build("the text does not fit", who=who, found=f"{stop} tokens", expected=expected)
        self._texts[occupant.slot, occupant.length : stop] = tokens
        occupant.length = stop

    def batch(
        self, occupants: Sequence[Occupant], engine_ids: Sequence[Sequence[int]] = (), *, resets: bool = True
    ) -> EngineBatch:
        """Return a batch of B rows, after the engine's drafts [B, G] if it has a drafter.

        With `resets`, it names the slots with a new occupant since the last such batch.
        """
        size = len(occupants)
        slots = torch.tensor([it.slot for it in occupants])
        lengths = _ints([it.length for it in occupants])
        table = self._allocator.slots
        return EngineBatch(
            slots=slots,
            generations=torch.tensor([table.generations[it.slot] for it in occupants]),
            rows=slots,
            tokens=self._tokens,
            lengths=lengths,
            sampled=torch.ones(size, dtype=torch.bool),
            room=_NO_END - lengths,
            temperature=torch.zeros(size),
            grammar=torch.zeros(size, dtype=torch.bool),
            vocab_size=self._vocab_size,
            reset_slots=table.take_resets() if resets else (),
            request_ids=tuple(it.request.request_id for it in occupants),
            requests=tuple(it.request for it in occupants),
            engine_ids=torch.tensor(engine_ids, dtype=torch.int32) if engine_ids else None,
        )

    @staticmethod
    def outcome(occupants: Sequence[Occupant], accepted: Sequence[int]) -> Outcome:
        """Return the outcome of the newest step, with the accepted draft tokens of each row."""
        verified = _ints([it.tried for it in occupants])
        emitted = _ints([it.emitted for it in occupants])
        return Outcome(verified, _ints(accepted), emitted)


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
