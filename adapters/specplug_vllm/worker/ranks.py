"""Tensor parallelism: rank 0 drafts, the others receive.

Every rank verifies the drafts that it holds itself, and drafts that differ by rank give silently wrong text.  So
nothing that could differ (a deadline, an exception, a race, a random draw) happens on any rank but the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from specplug_vllm import seams


class Ranks:
    """The tensor-parallel ranks of one worker.

    Attributes:
        leads: whether this rank drafts.
    """

    def __init__(self, group: Any) -> None:
        self._send = _sender(group) if group.world_size > 1 else None
        self.leads: bool = group.rank_in_group == 0

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite `tensor`, contiguous, with rank 0's, without waiting on the host.  Free with one rank."""
        if self._send is not None:
            self._send(tensor, src=0)


def _sender(group: Any) -> Callable[..., Any]:
    """Return what broadcasts in a group: NCCL's communicator that vLLM has set up and warmed up, where there is one.

    The group's own method goes through torch's device group, which makes a communicator of its own at its first use,
    when vLLM has given all memory away.
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
