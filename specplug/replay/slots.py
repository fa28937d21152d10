"""Running requests of a replay, their texts so far, and their steps, which a compiled step takes where it can.

Tokens that the target has not emitted yet are poisoned, so a proposer that reads past its context gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specplug.errors import EngineError
from specplug.pipeline.cpu.step import CpuStep
from specplug.pipeline.draft import DraftStage
from specplug.replay.items import Ids
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.plan import RequestStats, StepPlan
from specplug.types.request import Request
from specplug.types.verdict import Outcome

POISON = 1_000_000_007
"""Fill value for undefined entries of the token table: an int32 that is an id of no vocabulary."""

PLENTY = 1 << 20
"""A remaining length that never limits a draft, so that it does not reveal where an output ends."""

_NO_LIMIT = 1 << 30
_NO_STOP = -1


class Occupant:
    """A running request: its slot, the newest step's counts, and its statistics so far."""

    __slots__ = ("accepted", "emitted", "generation", "length", "rejected", "request", "slot", "tried", "verified")

    def __init__(self, slot: int, generation: int, request: Request) -> None:
        self.slot, self.generation, self.request = slot, generation, request
        self.length = self.verified = self.accepted = self.rejected = 0
        self.tried, self.emitted = 0, 1  # by the newest step; the first token comes from prefill

    def stats(self) -> RequestStats:
        """Return the statistics for planners."""
        counts = self.verified, self.accepted, self.rejected
        return RequestStats(self.request.request_id, self.length, PLENTY, None, *counts)


class ReplaySlots:
    """The token table of S slots and L tokens, and the running requests in order of arrival.

    Attributes:
        taken: the occupants of the slots in use, which are the rows of a batch.
        is_compiled: whether a compiled step can take the stage's steps, as for most proposers of chains on the host.
    """

    def __init__(self, stage: DraftStage, max_slots: int, max_length: int, vocab_size: int) -> None:
        self.taken: list[Occupant] = []
        self._vocab_size, self._resets = vocab_size, set[int]()
        self._tokens = torch.full((max_slots, max_length), POISON, dtype=torch.int32)
        self._texts = self._tokens.numpy()
        row = torch.tensor([0, _NO_LIMIT, _NO_LIMIT, 0, 0, _NO_STOP])  # as in `specplug.runtime.slots`
        table = row.repeat(max_slots, 1)
        self._generations = table.numpy()[:, 0]
        self._step = CpuStep(stage, table, torch.zeros(max_slots, dtype=torch.int64), vocab_size)
        self._step.warm_up()
        self._step.columns.caps[:] = _NO_LIMIT
        self._drafts = stage.runners[0].buffer
        self.is_compiled = self._step.applies
        self._rows: list[Occupant] = []
        self._batch: EngineBatch | None = None

    def take(self, slot: int, request: Request) -> Occupant:
        """Assign a slot to a request that has no text yet, as the last row."""
        self._generations[slot] += 1
        occupant = Occupant(slot, int(self._generations[slot]), request)
        self._texts[slot].fill(POISON)
        self.taken.append(occupant)
        self._resets.add(slot)
        return occupant

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

    def batch(self, occupants: Sequence[Occupant], *, resets: bool = True) -> EngineBatch:
        """Return the batch of some occupants, B rows, valid until the next one is built.

        With `resets`, it names the slots that have a new occupant since the last such batch.
        """
        columns, size = self._step.columns, len(occupants)
        if self._batch is None or self._rows != occupants:
            self._rows = list(occupants)
            columns.slots[:size] = columns.table_rows[:size] = [it.slot for it in occupants]
            requests = tuple(it.request for it in occupants)
            names = tuple(request.request_id for request in requests)
            batch = columns.batch(size, self._tokens, self._vocab_size)
            self._batch = replace(batch, request_ids=names, requests=requests)
        columns.lengths[:size] = [it.length for it in occupants]
        columns.emitted[:size] = [it.emitted for it in occupants]
        columns.verified[:size] = [it.tried for it in occupants]
        self._step.describe(size)
        if not (resets and self._resets):
            return self._batch
        slots = tuple(sorted(self._resets))
        self._resets.clear()
        return replace(self._batch, reset_slots=slots)

    def step(self, batch: EngineBatch, plan: StepPlan) -> Draft:
        """Take a compiled step of the newest batch: propose at least one token, and trim; caps are ignored."""
        self._step.take(batch, self._texts, plan)
        return self._drafts.view(batch.batch_size, plan.draft_length)

    def outcome(self, batch: EngineBatch, accepted: Sequence[int]) -> Outcome:
        """Return the outcome of the newest step of the newest batch, with the accepted draft tokens of each row."""
        columns, size = self._step.columns, batch.batch_size
        verified, emitted = columns.tensor("verified", size), columns.tensor("emitted", size)
        return Outcome(verified, torch.tensor(accepted, dtype=torch.int32), emitted)
