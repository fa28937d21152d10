"""Tensor parallelism: rank 0 plans and drafts, and broadcasts to the other ranks.

Every rank verifies its own copy of the drafts, and drafts that differ between ranks silently give wrong text.  So
anything that could differ (a deadline, an exception, a race, a measured time, a random draw, an operator's file) is
decided on rank 0 only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug.types.draft import Draft


class RankGroup:
    """The tensor-parallel ranks of one worker.

    Attributes:
        rank: this process's tensor-parallel rank.
        is_alone: whether there are no other ranks, so that there is nothing to share.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = group.rank_in_group
        self.is_alone: bool = group.world_size == 1

    @property
    def leads(self) -> bool:
        """True on rank 0, which drafts."""
        return self.rank == 0

    def agree(self, number: int) -> int:
        """Return rank 0's number, broadcast between hosts as one small message.  A no-op with one rank."""
        if self.is_alone:
            return number
        message = torch.tensor([number], dtype=torch.int64)
        torch.distributed.broadcast(message, src=self._group.ranks[0], group=self._group.cpu_group)
        return int(message)

    def share(self, draft: Draft) -> Draft:
        """Return rank 0's draft, broadcast on the device without a host sync.

        The ranks know its size: see `agree`.
        """
        packed = torch.cat(_columns(draft), 1).contiguous()
        self._group.broadcast(packed, src=0)
        return _unpacked(draft, packed)

    def share_from_host(self, draft: Draft | None, blank: Callable[[int], Draft], most: int) -> Draft | None:
        """Return rank 0's draft in host memory, None if it has none, broadcast between hosts as one message.

        Its length may be any up to `most`; `blank` returns an empty draft of as many rows and a given length.
        """
        whole = _columns(blank(most))
        message = torch.zeros(len(whole[0]), 1 + sum(column.shape[1] for column in whole), dtype=torch.int32)
        if draft is not None:
            columns = torch.cat(_columns(draft), 1)
            message[:, 0], message[:, 1 : 1 + columns.shape[1]] = draft.draft_length, columns
        torch.distributed.broadcast(message, src=self._group.ranks[0], group=self._group.cpu_group)
        draft_length = int(message[0, 0])
        return _unpacked(blank(draft_length), message[:, 1:]) if draft_length else None


def _columns(draft: Draft) -> list[Tensor]:
    """Return what ranks verify of a draft, [B, columns] each, int32."""
    return [draft.token_ids, draft.lengths[:, None]] + ([] if draft.parents is None else [draft.parents])


def _unpacked(draft: Draft, packed: Tensor) -> Draft:
    """Return `draft` with the contents of the columns [B, at least as many]."""
    draft_length = draft.draft_length
    return replace(
        draft,
        token_ids=packed[:, :draft_length],
        lengths=packed[:, draft_length],
        parents=None if draft.parents is None else packed[:, draft_length + 1 : 2 * draft_length + 1],
    )
