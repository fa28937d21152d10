"""What kernels write of a batch's rows on a device and plug-ins read there; the state by slot; sums over rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specplug.steps.draft_stage import DraftStage
from specplug.steps.rows import Rows
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft, EngineBatch, Verdict

LENGTHS, ROOM, KNOWN, NUM_NEW, LIMITS, COUNTED, TAKEN, BASE, *_VERDICT = range(14)
"""Rows of `DeviceColumns.counts`."""
PROPOSED, VERIFIED, ACCEPTED, CUT, EMITTED, AFTER_STOP = _VERDICT

RECORDS = 8
"""Records of `DraftSums`: engines have two steps in flight, and read a step's record once it has run."""


class Tokens(NamedTuple):
    """Tokens of drafts: ids int32, confidence float32 and sources int32, in rows of N."""

    ids: Tensor
    confidence: Tensor
    sources: Tensor

    @classmethod
    def of(cls, draft: Draft) -> Tokens:
        """Return those of a draft."""
        return cls(draft.token_ids, draft.confidence, draft.source)


class DeviceColumns(NamedTuple):
    """Facts of at most S rows, one entry per row; a batch of B rows uses the first B entries.

    Kernels write them in each step, so they are apart from `Rows`, which the host knows and keeps from step to step.

    Attributes:
        counts: [14, S] int32: length, room, known and new tokens, limit, and 1 if `DraftReport` counts the row; length
            and base of the draft in flight; and the fields of its `Verdict`, of which the number cut by grammars is
            always 0.
        slots, generations: [S] int64.
        sampled, grammar: [S] bool.
        temperature: [S] float32.
        engine_ids: [S, G] int32, the draft of the engine's own drafter, of at most G tokens, -1 after its end.
        taken: S rows of N tokens, the drafts in flight, whose lengths are in `counts`.
    """

    counts: Tensor
    slots: Tensor
    generations: Tensor
    sampled: Tensor
    grammar: Tensor
    temperature: Tensor
    engine_ids: Tensor
    taken: Tokens

    @classmethod
    def allocate(cls, stage: DraftStage) -> DeviceColumns:
        """Return columns of zeros for the batches of a stage."""
        buffer = stage.runners[0].buffer
        max_slots, draft_length = buffer.token_ids.shape

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(max_slots, dtype=dtype, device=buffer.device)

        return cls(
            counts=torch.zeros(AFTER_STOP + 1, max_slots, dtype=torch.int32, device=buffer.device),
            slots=zeros(torch.int64),
            generations=zeros(torch.int64),
            sampled=zeros(torch.bool),
            grammar=zeros(torch.bool),
            temperature=zeros(torch.float32),
            engine_ids=torch.full((max_slots, stage.engine_tokens), NO_TOKEN, dtype=torch.int32, device=buffer.device),
            taken=Tokens.of(Draft.allocate(max_slots, draft_length, device=buffer.device)),
        )

    def batch(self, rows: Rows, tokens: Tensor, vocab_size: int) -> EngineBatch:
        """Return a batch of B rows whose tensors share the columns' memory; `tokens` [S, L] int32 is by slot."""
        size = len(rows.names)
        slots = self.slots[:size]
        return EngineBatch(
            slots=slots,
            generations=self.generations[:size],
            rows=slots,
            tokens=tokens,
            lengths=self.counts[LENGTHS, :size],
            sampled=self.sampled[:size],
            room=self.counts[ROOM, :size],
            temperature=self.temperature[:size],
            grammar=self.grammar[:size],
            vocab_size=vocab_size,
            barriers=rows.barriers,
            request_ids=rows.names,
            requests=rows.requests,
            engine_ids=self.engine_ids[:size] if self.engine_ids.shape[1] else None,
        )

    def read_verdict(self, batch_size: int, sources: tuple[str, ...]) -> tuple[Draft, Verdict]:
        """Return the drafts that a step of B rows verified, and their verdict; both share the columns' memory.

        `sources` are the names of the drafts' sources.
        """
        counts = self.counts[:, :batch_size].unbind()
        taken = self.taken
        draft = Draft(
            token_ids=taken.ids[:batch_size],
            lengths=counts[TAKEN],
            confidence=taken.confidence[:batch_size],
            source=taken.sources[:batch_size],
            base_len=counts[BASE],
            sources=sources,
        )
        return draft, Verdict(*counts[PROPOSED:])


class DeviceState(NamedTuple):
    """State by slot and counters, which the kernels share with the draft stage.

    Attributes:
        table: [S, 5 + M] int64, the slot table: generation, end, cap, grammar, verifier and M stop ids.
        stopped: [S] int64, the generation of each slot that has stopped.
        ingested: [S] int32, tokens of each slot that the proposer has.
        ingested_by: [S] int64, the generation that these tokens belong to.
        heads: [S, 3 + N] int64, the drafts that wait for their verdict; see `InFlight`.
        ids, confidence: [S, N] int32 and float32, the tokens of these drafts.
        row_counts, token_counts: [C + 2, 3] and [C + 1, N, 6] int64, the counters of `SpecMetrics`.
    """

    table: Tensor
    stopped: Tensor
    ingested: Tensor
    ingested_by: Tensor
    heads: Tensor
    ids: Tensor
    confidence: Tensor
    row_counts: Tensor
    token_counts: Tensor

    @classmethod
    def of(cls, stage: DraftStage, table: Tensor, stopped: Tensor) -> DeviceState:
        """Return the state of a stage with one proposer; `table` and `stopped` as above."""
        runner = stage.runners[0]
        store = stage.in_flight.store
        found = (table, stopped, runner.ingested, runner.generations, stage.in_flight.heads)
        return cls(*found, store.token_ids, store.confidence, *stage.metrics.tensors())


class DraftSums(NamedTuple):
    """Sums over the rows of one step, and the records in host memory that a GPU writes them to.

    Attributes:
        sums: [K + 3] int64: how many programs of the step have ended; the rows whose drafts begin with a token of the
            engine's; and from `ROWS` on the result of `survival_sums`.  All are 0 between steps.
        records: [8, K + 2] int64, pinned: the number of the step, times `STEP`, plus the rows that begin so; and the
            result of `survival_sums`.
    """

    sums: Tensor
    records: Tensor

    @classmethod
    def allocate(cls, stage: DraftStage) -> DraftSums:
        """Return zeros for the drafts of a stage."""
        buffer = stage.runners[0].buffer
        places = buffer.draft_length + 2
        pinned = buffer.device.type == "cuda"
        records = torch.zeros(RECORDS, places, dtype=torch.int64, pin_memory=pinned)
        return cls(torch.zeros(places + 1, dtype=torch.int64, device=buffer.device), records)


ENDED, OF_ENGINE, ROWS = range(3)
"""Entries of `DraftSums.sums`."""
STEP = 1 << 32
"""Factor of the step in the first number of a record."""
