"""Drafts kept by slot until their verdict arrives: on async engines one step later, in a different row order."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft, chain_parents


class Taken(NamedTuple):
    """The drafts that a step verified, without their tokens.  B rows; those without a valid draft are empty.

    Attributes:
        slots: [B] int64.
        lengths: [B] int32, draft tokens.
        source: [B, N] int64, index of each token into the sources of all proposers; rows without a draft have -1.
    """

    slots: Tensor
    lengths: Tensor
    source: Tensor


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
        self.is_empty = False
        """True if the host knows that no draft is stored, so there is nothing to take."""

    def put(self, batch: EngineBatch, draft: Draft, num_running: int) -> None:
        """Store `draft`, whose rows are those of `batch`; `num_running` requests hold slots."""
        slots, draft_length = batch.slots.long(), draft.draft_length
        if self.is_empty and not draft_length:
            return
        self.is_empty = (
            not draft_length and batch.batch_size == num_running
        )  # an empty draft for all running requests replaces everything
        head = torch.stack((batch.generations, draft.base_len, draft.lengths), 1)
        self.heads[slots, : 3 + draft_length] = torch.cat((head, draft.source), 1)
        if not draft_length:
            return
        store = self.store
        store.token_ids[slots, :draft_length] = draft.token_ids
        store.confidence[slots, :draft_length] = draft.confidence
        if store.parents is not None:
            store.parents[slots, :draft_length] = chain_parents(draft) if draft.parents is None else draft.parents

    def take(self, batch: EngineBatch, emitted: Tensor) -> Taken:
        """Return the drafts that the step before `batch` verified, in the row order of `batch`.

        `batch` is the batch after the verification: its lengths include `emitted` [B].  Each draft is handed out once.
        """
        slots = batch.slots.long()
        heads = self.heads[slots]
        generation, base_len, length = heads[:, :3].unbind(1)
        valid = (generation == batch.generations) & (base_len == batch.lengths - emitted)
        self.heads.index_fill_(0, slots, -1)
        lengths = (length * valid).int()
        return Taken(slots, lengths, torch.where(lengths[:, None] > 0, heads[:, 3:], -1))

    def drafts(self, batch: EngineBatch, emitted: Tensor, taken: Taken, sources: tuple[str, ...]) -> Draft:
        """Return the taken drafts with their tokens, for plug-ins that learn from them."""
        store = self.store
        found = replace(
            store,
            token_ids=store.token_ids[taken.slots],
            confidence=store.confidence[taken.slots],
            parents=None if store.parents is None else store.parents[taken.slots],
            lengths=taken.lengths.clone(),
            source=taken.source.int(),
            base_len=batch.lengths - emitted,
            sources=sources,
        )
        found.shorten(taken.lengths)
        return found
