"""Tensor parallelism: rank 0 drafts, the others receive.

Every rank verifies the drafts that it holds itself, and drafts that differ by rank give silently wrong text.  So
nothing that could differ (a deadline, an exception, a race, a random draw) happens on any rank but the first.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Ranks:
    """The tensor-parallel ranks of one worker.

    Attributes:
        leads: whether this rank drafts.
    """

    def __init__(self, group: Any) -> None:
        self._group = group if group.world_size > 1 else None
        self.leads: bool = group.rank_in_group == 0

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with rank 0's, on the device and without waiting on the host.  Free with one rank."""
        if self._group is not None:
            self._group.broadcast(tensor, src=0)


def ranks() -> Ranks:
    """Return this process's tensor-parallel ranks."""
    from vllm.distributed import get_tp_group

    return Ranks(get_tp_group())
