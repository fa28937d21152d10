"""Tensor parallelism: rank 0 plans and drafts, and broadcasts to the other ranks.

Every rank verifies its own copy of the drafts, and drafts that differ between ranks silently give wrong text.  So
anything that could differ (a deadline, an exception, a race, a measured time, a random draw, an operator's file) is
decided on rank 0 only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from specplug.types.step import Draft


class RankGroup:
    """The tensor-parallel ranks of one worker.

    Attributes:
        rank: this process's tensor-parallel rank; 0 drafts.
        is_alone: whether there are no other ranks, so that there is nothing to share.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = group.rank_in_group
        self.is_alone: bool = group.world_size == 1

    def agree(self, number: int) -> int:
        """Return rank 0's number, broadcast between hosts as one small message.  A no-op with one rank."""
        if self.is_alone:
            return number
        message = torch.tensor([number], dtype=torch.int64)
        torch.distributed.broadcast(message, src=self._group.ranks[0], group=self._group.cpu_group)
        return int(message)

    def share(self, draft: Draft) -> Draft:
        """Return rank 0's draft, broadcast without a host sync, given one of its size: see `agree`."""
        columns = [draft.token_ids, draft.lengths[:, None]] + ([] if draft.parents is None else [draft.parents])
        packed = torch.cat(columns, 1).contiguous()  # [B, columns] int32: what ranks verify
        self._group.broadcast(packed, src=0)
        n = draft.draft_length
        parents = None if draft.parents is None else packed[:, n + 1 :]
        return replace(draft, token_ids=packed[:, :n], lengths=packed[:, n], parents=parents)
