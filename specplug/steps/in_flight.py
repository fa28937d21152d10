"""InFlight: the drafts that wait for their verdict, by slot.

On async engines a verdict arrives one step later, in a different row order.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specplug.types.draft import chain_parents
from specplug.types.step import Draft, EngineBatch
from specplug.types.tensors import as_array, as_tensor, library


class InFlight:
    """The newest draft of each slot, S slots of N tokens, on the engine's device.  Reads nothing back.

    Rows are matched by slot.  A draft is invalid if its slot has a new generation by then, or if its `base_len` is not
    the length that the verified step started from.
    """

    def __init__(self, max_slots: int, max_draft_length: int, device: torch.device, *, trees: bool) -> None:
        self.store = Draft.allocate(max_slots, max_draft_length, device=device, trees=trees)
        """The tokens of the drafts, and their confidence."""
        # One table holds all that every step reads (generation, base, length, sources), so that one gather suffices.
        self.heads = torch.full((max_slots, 3 + max_draft_length), -1, dtype=torch.int64, device=device)
        self._heads = as_array(self.heads)
        self.is_empty = False
        """True if the host knows that no draft is stored, so there is nothing to take."""

    def put(self, batch: EngineBatch, draft: Draft, num_requests: int) -> None:
        """Store `draft`, whose rows are those of `batch`; `num_requests` requests hold slots."""
        draft_length = draft.draft_length
        if self.is_empty and not draft_length:
            return
        # An empty draft for all running requests replaces everything.
        self.is_empty = not draft_length and batch.batch_size == num_requests
        xp = library(batch.slots)
        slots = as_array(batch.slots)
        head = xp.stack(tuple(map(as_array, (batch.generations, draft.base_len, draft.lengths))), 1)
        self._heads[slots, : 3 + draft_length] = xp.concatenate((head, as_array(draft.source)), 1)
        if not draft_length:
            return
        store = self.store
        pairs = [(store.token_ids, draft.token_ids), (store.confidence, draft.confidence)]
        if store.parents is not None:
            pairs.append((store.parents, chain_parents(draft) if draft.parents is None else draft.parents))
        for kept, new in pairs:
            as_array(kept)[slots, :draft_length] = as_array(new)

    def take(self, batch: EngineBatch, emitted: Tensor) -> tuple[Tensor, Tensor]:
        """Return lengths and sources of the drafts that the step before `batch` verified, in the row order of `batch`.

        `batch` is the batch after the verification: its lengths include `emitted` [B].  Each draft is taken once.

        Returns:
            [B] int32, draft tokens, 0 for rows without a valid draft; and [B, N] int64, the index of each token into
            the sources of all proposers, -1 for these rows.
        """
        slots, lengths, new, now = map(as_array, (batch.slots, batch.lengths, emitted, batch.generations))
        xp = library(batch.slots)
        heads = self._heads[slots]
        self._heads[slots] = xp.full_like(heads, -1)
        is_valid = (heads[:, 0] == now) & (heads[:, 1] == lengths - new)
        counts = heads[:, 2] * is_valid
        source = xp.where(counts[:, None] > 0, heads[:, 3:], -1)
        return as_tensor(counts).int(), as_tensor(source)

    def drafts(
        self, batch: EngineBatch, emitted: Tensor, lengths: Tensor, source: Tensor, sources: tuple[str, ...]
    ) -> Draft:
        """Return the drafts of which `take` returned `lengths` and `source`, with their tokens, for plug-ins."""
        store = self.store
        slots = batch.slots.long()
        taken = replace(
            store,
            token_ids=store.token_ids[slots],
            confidence=store.confidence[slots],
            parents=None if store.parents is None else store.parents[slots],
            lengths=lengths.clone(),
            source=source.int(),
            base_len=batch.lengths - emitted,
            sources=sources,
        )
        taken.shorten(lengths)
        return taken
