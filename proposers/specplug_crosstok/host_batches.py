"""HostBatches: the bridge between batches in host memory and the draft model's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specplug.types.step import Draft, EngineBatch
from specplug.types.tensors import to_device


class HostBatches:
    """Keeps the tokens of requests that the draft model has a row for, as batches may hold only new ones."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._device = device
        self._tokens = torch.zeros(max_rows, 1024, dtype=torch.int32)

    def keep(self, batch: EngineBatch, rows: Sequence[int]) -> None:
        """Keep a batch's new tokens.  `rows` has the row of each slot, negative for none."""
        starts = batch.lengths - batch.num_new
        columns = starts if batch.first is None else starts - batch.first
        longest = int(batch.lengths.max()) if batch.batch_size else 0
        if longest > self._tokens.shape[1]:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, 2 * longest - self._tokens.shape[1]))
        each = (batch.slots, batch.rows, batch.num_new, starts, columns)
        for slot, entry, count, start, column in zip(*(it.tolist() for it in each), strict=True):
            if rows[slot] >= 0 and count:
                self._tokens[rows[slot], start : start + count] = batch.tokens[entry, column : column + count]

    def moved(self, batch: EngineBatch, limits: Tensor, rows: Sequence[int]) -> tuple[EngineBatch, Tensor]:
        """Return a batch and its limits on the model's device, with the tokens that were kept, which stay here."""
        own = torch.tensor([max(0, rows[slot]) for slot in batch.slots.tolist()])
        columns = [batch.slots, batch.generations, batch.lengths, batch.temperature, limits]
        slots, generations, lengths, temperature, limits = to_device(columns, self._device)
        moved = replace(
            batch,
            slots=slots,
            generations=generations,
            lengths=lengths,
            temperature=temperature,
            rows=own,
            tokens=self._tokens,
            first=None,
        )
        return moved, limits

    def draft_like(self, draft: Draft) -> Draft:
        """Return a draft on the model's device: this one if it is there."""
        if draft.device == self._device:
            return draft
        logits = draft.draft_logits
        own = Draft.allocate(
            draft.batch_size,
            draft.draft_length,
            device=self._device,
            distribution=draft.distribution,
            vocab_size=0 if logits is None else logits.shape[2],
            draft_vocab=None if draft.draft_vocab is None else draft.draft_vocab.to(self._device),
            sources=draft.sources,
        )
        own.base_len.copy_(draft.base_len)
        return own
