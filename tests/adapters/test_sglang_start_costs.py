"""Costs of steps at the start of SGLang's ranks: all of them take part in what rank 0 sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specplug.cost.measuring import Measurement
from specplug.cost.store import StartCosts
from specplug.types.step import StepCost
from specplug_sglang.scheduler.start_costs import on_rank_0

COSTS = (StepCost(1, 1, 0, 0, 0.5),)


class Ranks:
    """Messages of rank 0, which another rank receives in order."""

    def __init__(self, rank: int, sent: list[int]) -> None:
        self.rank, self.sent = rank, sent

    def agree(self, number: int) -> int:
        if self.rank:
            return self.sent.pop(0)
        self.sent.append(number)
        return number


@pytest.mark.parametrize("is_kept", [True, False])
def test_all_ranks_time_steps_if_rank_0_does(is_kept):
    sent: list[int] = []
    timed: list[int] = []

    def timed_by(ranks: Ranks) -> Callable[[], Measurement]:
        def run() -> Measurement:
            timed.append(ranks.rank)
            return Measurement(tuple(COSTS[0] for _ in range(3) if ranks.agree(7) == 7), True)

        return run

    def find(measured: Callable[[], Measurement]) -> StartCosts:
        return StartCosts(COSTS if is_kept else measured().costs)

    first, other = Ranks(0, sent), Ranks(1, sent)
    found = on_rank_0(first, timed_by(first), find)
    assert found is not None
    assert len(found.costs) == (1 if is_kept else 3)
    assert len(sent) == (1 if is_kept else 4)
    assert on_rank_0(other, timed_by(other), find) is None
    assert sent == [], "nobody waits for a message, and none is left"
    assert timed == ([] if is_kept else [0, 1])


@pytest.mark.parametrize("fails", ["before", "while timing"])
def test_a_failure_stops_no_rank_and_leaves_none_waiting(fails):
    sent: list[int] = []

    def timed() -> Measurement:
        raise RuntimeError("out of memory")

    def find(measured: Callable[[], Measurement]) -> StartCosts:
        if fails == "before":
            raise RuntimeError("no home directory")
        return StartCosts(measured().costs)

    assert on_rank_0(Ranks(0, sent), timed, find) is None
    assert sent == [fails == "while timing"]
    assert on_rank_0(Ranks(1, sent), timed, find) is None
    assert sent == []
