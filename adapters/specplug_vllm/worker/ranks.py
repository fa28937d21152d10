"""Tensor parallelism: rank 0 drafts and broadcasts its drafts to the other ranks.

Every rank verifies its own copy of the drafts, and drafts that differ between ranks silently give wrong text.  So
anything that could differ (a deadline, an exception, a race, a random draw) happens on rank 0 only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from specplug_vllm import seams


class Ranks:
    """The tensor-parallel ranks of one worker.

    Attributes:
        leads: True on rank 0, which drafts.
    """

    def __init__(self, group: Any) -> None:
        self._send = _sender(group) if group.world_size > 1 else None
        self.leads: bool = group.rank_in_group == 0

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite `tensor`, contiguous, with rank 0's, without a host sync.  A no-op with one rank."""
        if self._send is not None:
            self._send(tensor, src=0)


def _sender(group: Any) -> Callable[..., Any]:
    """Return the broadcast function of a group: that of vLLM's warmed-up NCCL communicator if there is one.

    The group's own method goes through torch's device group, which creates another communicator at its first use, when
    vLLM has already allocated all memory.
    """
    communicator = group.device_communicator
    nccl = getattr(communicator, "pynccl_comm", None)
    warm = nccl is not None and seams.available("nccl") and not nccl.disabled
    through: Callable[..., Any] = communicator.broadcast if warm else group.broadcast
    return through


def ranks() -> Ranks:
    """Return this process's tensor-parallel ranks."""
    from vllm.distributed import get_tp_group

    return Ranks(get_tp_group())
