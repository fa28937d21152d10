"""Rows of a batch on an engine's device, as kernels write them and plug-ins read them; the state by slot; launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.pipeline.draft import DraftStage
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.verdict import Verdict

LENGTHS, ROOM, KNOWN, NUM_NEW, LIMITS, TAKEN, BASE, PROPOSED, VERIFIED, ACCEPTED, CUT, EMITTED, AFTER_STOP = range(13)
"""Rows of `DeviceColumns.counts`."""


class DeviceColumns(NamedTuple):
    """Facts of at most S rows, one entry per row; a batch of B rows uses the first B entries.

    Attributes:
        counts: [13, S] int32: length, room, known and new tokens, limit; length and base of the draft in flight; and
            the fields of its `Verdict`, of which the number cut by grammars is always 0.
        slots, generations: [S] int64.
        sampled, grammar: [S] bool.
        temperature: [S] float32.
        taken: S rows of N tokens, the drafts in flight, whose lengths are in `counts`.
    """

    counts: Tensor
    slots: Tensor
    generations: Tensor
    sampled: Tensor
    grammar: Tensor
    temperature: Tensor
    taken: Draft

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
            taken=Draft.allocate(max_slots, draft_length, device=buffer.device, sources=stage.sources),
        )

    def batch(self, batch_size: int, tokens: Tensor, vocab_size: int) -> EngineBatch:
        """Return a batch of B rows whose tensors share the columns' memory; `tokens` [S, L] int32 is by slot."""
        slots = self.slots[:batch_size]
        return EngineBatch(
            slots=slots,
            generations=self.generations[:batch_size],
            rows=slots,
            tokens=tokens,
            lengths=self.counts[LENGTHS, :batch_size],
            sampled=self.sampled[:batch_size],
            room=self.counts[ROOM, :batch_size],
            temperature=self.temperature[:batch_size],
            grammar=self.grammar[:batch_size],
            vocab_size=vocab_size,
        )

    def judged(self, batch_size: int) -> tuple[Draft, Verdict]:
        """Return the drafts that a step of B rows verified, and their verdict; both share the columns' memory."""
        counts = self.counts[:, :batch_size].unbind()
        taken = self.taken
        draft = Draft(
            token_ids=taken.token_ids[:batch_size],
            lengths=counts[TAKEN],
            confidence=taken.confidence[:batch_size],
            source=taken.source[:batch_size],
            base_len=counts[BASE],
            sources=taken.sources,
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
        runner, store = stage.runners[0], stage.in_flight.store
        found = (table, stopped, runner.ingested, runner.generations, stage.in_flight.heads)
        return cls(*found, store.token_ids, store.confidence, *stage.metrics.tensors())


class Launches(NamedTuple):
    """Functions that launch a kernel each; see `specplug.pipeline.device.kernels` for their arguments."""

    begin: Callable[..., None]
    finish: Callable[..., None]


def launches_for(device: torch.device) -> Launches | None:
    """Return the kernels of a GPU, or of a CPU where Triton's interpreter is on.

    Elsewhere there are none, and the draft stage takes its steps itself: it needs no Triton.
    """
    try:
        from specplug.pipeline.device import kernels
    except ImportError:
        return None
    has_kernels = device.type == "cuda" or (device.type == "cpu" and kernels.INTERPRETED)
    return Launches(kernels.begin, kernels.finish) if has_kernels else None
