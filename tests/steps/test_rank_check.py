"""Ranks that each draft: one whose drafts, or what they depend on, differ from rank 0's says so; nothing is waited for.

tests/engines/vllm/test_tensor_parallel.py has two real ranks.
"""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.lookup.proposer import LookupProposer
from specplug.steps.rank_check import CHECKED_EVERY, RankCheck
from specplug.types.caps import EngineCaps
from tests.steps.test_no_sync import Watch


class Ranks:
    """Two ranks in one process, of which rank 0 takes each step first."""

    def __init__(self, every: int) -> None:
        self.sent: deque[Tensor] = deque()
        self.proposers = [LookupProposer(PluginContext(EngineCaps(4), max_slots=2, max_length=32)) for _ in range(2)]
        ways = (lambda tensor: self.sent.append(tensor.clone()), lambda tensor: tensor.copy_(self.sent.popleft()))
        self.checks = [
            RankCheck({"ngram": proposer}, rank, way)
            for rank, (proposer, way) in enumerate(zip(self.proposers, ways, strict=True))
        ]
        for check in self.checks:
            check.every = every

    def step(self, *drafts: list[int]) -> None:
        for check, ids in zip(self.checks, drafts, strict=True):
            check.after_step(SLOTS, torch.tensor([ids, [3, 4]]))

    def difference(self, *drafts: list[int]) -> str:
        with pytest.raises(EngineError) as caught:
            self.step(*drafts)
        return str(caught.value)


SAME = [1, 2], [1, 2]
SLOTS = torch.arange(2)


def test_equal_ranks_go_on_and_compare_every_so_many_steps():
    ranks = Ranks(every=3)
    sent = []
    for _ in range(10):
        ranks.step(*SAME)
        sent.append(len(ranks.sent))
    assert ranks.checks[0].every == 3
    assert not any(sent), "rank 1 has received what rank 0 sent"
    assert RankCheck({}, 0, print).every == CHECKED_EVERY


def test_other_drafts_are_named_at_the_step_after_the_comparison():
    ranks = Ranks(every=2)
    ranks.step(*SAME)
    ranks.step([1, 2], [1, 9])
    found = ranks.difference(*SAME)
    assert "tensor-parallel rank 1" in found
    assert "differences in drafts; expected none" in found
    assert '"draft_ranks": "first"' in found


def test_other_memory_is_named_although_the_drafts_are_equal():
    ranks = Ranks(every=1)
    ranks.step(*SAME)
    ranks.proposers[1].steps.state.ring[5] += 1
    ranks.step(*SAME)
    for _ in range(2):
        assert "differences in ngram's responses; expected none" in ranks.difference(*SAME)


def test_a_difference_that_has_gone_when_the_result_arrives_is_known():
    ranks = Ranks(every=100)
    for wrong in (0, 7, 0):
        for check, ids in zip(ranks.checks, ([1, 2], [1, 2 + wrong]), strict=True):
            check._compare(SLOTS, torch.tensor([ids]))  # as while a GPU has not run these steps yet
    assert "differences in drafts" in ranks.difference(*SAME)


def test_a_comparison_reads_nothing_back_and_copies_nothing_to_the_device():
    ranks = Ranks(every=2)
    ranks.step(*SAME)
    drafts = torch.tensor([*SAME])
    with torch.inference_mode(), Watch() as watch:
        ranks.checks[0].after_step(SLOTS, drafts)
    assert ranks.sent
    assert watch.count > 20
    assert watch.found == []
