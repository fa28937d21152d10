"""Remembers drafts by slot until their verdict arrives: on async engines one step later, in another row order."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specplug.types.batch import BatchView
from specplug.types.draft import Draft, chain_parents


class InFlight:
    """The newest draft of each slot, S slots of N tokens, on the engine's device.  Never reads back.

    Rows are found again by slot; a draft is void when its slot has another generation by then, or when the base that it
    was drafted for is not the length that the verified step started from.
    """

    def __init__(self, max_slots: int, max_width: int, device: torch.device, *, trees: bool) -> None:
        self._drafts = Draft.allocate(max_slots, max_width, device=device, trees=trees)
        self._generations = torch.full((max_slots,), -1, dtype=torch.int64, device=device)

    def put(self, batch: BatchView, draft: Draft) -> None:
        """Remember `draft`, whose rows are those of `batch`."""
        slots, width = batch.slots.long(), draft.width
        store = self._drafts
        store.token_ids[slots, :width] = draft.token_ids
        store.confidence[slots, :width] = draft.confidence
        if store.parents is not None:
            store.parents[slots, :width] = chain_parents(draft) if draft.parents is None else draft.parents
        store.lengths[slots] = draft.lengths
        store.source[slots] = draft.source
        store.base_len[slots] = draft.base_len
        self._generations[slots] = batch.generations

    def take(self, batch: BatchView, emitted: Tensor, sources: tuple[str, ...]) -> Draft:
        """Return the drafts that the step before `batch` verified, in the row order of `batch`.

        `batch` is the batch after the verification: its lengths include `emitted` [B].  Rows without a valid draft come
        back empty.  Each draft is handed out once.
        """
        slots = batch.slots.long()
        store = self._drafts
        valid = (self._generations[slots] == batch.generations) & (store.base_len[slots] == batch.lengths - emitted)
        lengths = torch.where(valid, store.lengths[slots], 0)
        taken = replace(
            store,
            token_ids=store.token_ids[slots],
            confidence=store.confidence[slots],
            parents=None if store.parents is None else store.parents[slots],
            lengths=lengths,
            source=store.source[slots],
            base_len=store.base_len[slots],
            sources=sources,
        )
        taken.shorten(lengths)
        self._generations.index_fill_(0, slots, -1)
        return taken
