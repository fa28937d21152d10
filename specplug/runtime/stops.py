"""Detection of the tokens emitted after a stop, on the device.

A row keeps running for a step or two after its end, until the scheduler learns of it.  The tokens that it emits there
reach no client and must not be learnt from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.runtime.slots import SlotRows


class StopDetector:
    """Tracks for each of S slots whether the occupant has stopped.  Nothing is read back.

    Args:
        max_slots: S.
        max_draft_length: N, the longest draft; a row emits at most N + 1 tokens per step.
        device: device of the batches.
    """

    def __init__(self, max_slots: int, max_draft_length: int, device: torch.device) -> None:
        self.stopped = torch.zeros(max_slots, dtype=torch.int64, device=device)
        """[S], the generation of each slot that has stopped."""
        self._back = torch.arange(max_draft_length, -1, -1, device=device)

    def after(
        self, tokens: Tensor, table_rows: Tensor, slots: Tensor, lengths: Tensor, emitted: Tensor, rows: SlotRows
    ) -> Tensor:
        """Return [B] int32, the number of a step's emitted tokens that come after a stop.

        Args:
            tokens: [R, L] int32, the token table.
            table_rows: [B], the row of each request in it.
            slots: [B].
            lengths: [B] int32, including the emitted tokens.
            emitted: [B] int32.
            rows: the slot table's rows of the batch.
        """
        slots = slots.long()
        place = lengths[:, None] - 1 - self._back  # of the newest N + 1 tokens, oldest first
        newest = tokens[table_rows.long()[:, None].to(tokens.device), place.clamp(min=0).to(tokens.device)]
        fresh = self._back < emitted[:, None]
        stop = (newest.to(slots.device)[:, :, None] == rows.stop_ids[:, None, :]).any(2)
        last = (stop | (place + 1 >= rows.ends[:, None])) & fresh
        ended = self.stopped[slots] == rows.generations
        after_last = last.cumsum(1) > last  # counts the stops up to and including each token
        self.stopped[slots] = torch.where(last.any(1), rows.generations, self.stopped[slots])
        return (fresh & (after_last | ended[:, None])).sum(1, dtype=torch.int32)
