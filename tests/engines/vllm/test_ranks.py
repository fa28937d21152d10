"""Messages between tensor-parallel ranks, and their transports.  Groups are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specplug_vllm.worker.drafting import Ranks
from specplug_vllm.worker.v2 import buffers


class Group:
    """A group of ranks that notes which of its two ways a tensor takes."""

    def __init__(self, world_size=2, **communicator):
        self.taken: list[tuple[str, torch.Tensor, int]] = []
        self.world_size, self.rank_in_group = world_size, 1
        self.device_communicator = SimpleNamespace(**communicator) if communicator else None
        if communicator:
            self.device_communicator.broadcast = lambda tensor, src: self.taken.append(("nccl", tensor, src))

    def broadcast(self, input_, src):
        self.taken.append(("torch", input_, src))


@pytest.mark.parametrize(
    ("group", "way"),
    [
        (Group(pynccl_comm=SimpleNamespace(disabled=False)), ["nccl"]),
        (Group(pynccl_comm=SimpleNamespace(disabled=True)), ["torch"]),
        (Group(pynccl_comm=None), ["torch"]),
        (Group(shared_memory=True), ["torch"]),  # a communicator of another platform
        (Group(), ["torch"]),
        (Group(world_size=1, pynccl_comm=SimpleNamespace(disabled=False)), []),
    ],
)
def test_drafts_go_through_the_communicator_that_is_warm(group, way):
    tensor, ranks = torch.arange(3), Ranks(group)
    ranks.broadcast(tensor)
    assert [name for name, _, _ in group.taken] == way
    assert all(sent is tensor and source == 0 for _, sent, source in group.taken)
    assert not ranks.leads


@pytest.mark.parametrize("draft_length", [1, 4, 7])
def test_ids_and_confidences_are_one_message(draft_length):
    rank0, rank1 = (buffers(5, draft_length, torch.device("cpu"), together=True) for _ in range(2))
    ids, levels = torch.randint(0, 1 << 40, (5, draft_length)), torch.rand(5, draft_length)
    rank0[1].copy_(ids)
    rank0[2].copy_(levels)
    assert rank0[0][:3].is_contiguous()
    rank1[0][:3].copy_(rank0[0][:3])
    assert torch.equal(rank1[1][:3], ids[:3])
    assert torch.equal(rank1[2][:3], levels[:3])
    assert not rank1[1][3:].any()
    assert not rank1[2][3:].any()


def test_confidences_stay_at_home_where_nothing_is_cut_by_them():
    sent, ids, levels = buffers(5, 4, torch.device("cpu"), together=False)
    assert sent is ids
    assert sent.shape == (5, 4)
    assert levels.shape == (5, 4)
    assert levels.dtype == torch.float32
