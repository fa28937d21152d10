"""Checksums of all that the lookup's drafts depend on; tensor-parallel ranks that each draft compare them."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.lookup import layout as at
from specplug.lookup import storage
from specplug.lookup.layout import State
from specplug.types.tensors import checksum

ENDS = 64
"""Tokens at the end of each text."""


def checksums(state: State, texts: Tensor, slots: Tensor) -> dict[str, Tensor]:
    """Return sums, each [] int32, that do not depend on the slots' numbers and earlier occupants.

    Args:
        state: the memory, without corpora.
        texts: [S, L] int32.
        slots: [B] int64, those of a step's rows, in their order.
    """
    facts = state.slots[slots]
    own = storage.own_rows(state)
    common = state.counts[: len(state.counts) - own.shape[0] * own.shape[1]]
    places = facts[:, at.END, None] - 1 - torch.arange(ENDS, dtype=torch.int32, device=slots.device)
    ends = torch.where(places < 0, 0, texts[slots[:, None], places.clamp(min=0)])
    tables = [checksum(table) for table in (state.ring, state.owners, state.buckets, state.end)]
    return {
        "texts": checksum(ends),
        "requests": checksum(facts[:, at.OWNER :]) + checksum(own[slots]),  # generations differ with the slots' use
        "hit rates": checksum(common),
        "responses": torch.stack(tables).sum(dtype=torch.int32),
    }
