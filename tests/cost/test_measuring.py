"""Timed steps: which sizes are run, in what order, and what is kept of their times.  The clock is the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.cost.measuring import REPEATS, Measurement, StepLimits, StepSize, measure, step_sizes
from specplug.types.step import StepCost

FREE = StepLimits(requests=32, tokens=2048, draft_lengths=range(16))


class Engine:
    """Runs steps whose seconds a function of the size and the run's number tells."""

    def __init__(self, seconds: Callable[[StepSize, int], float], longest: int = 1 << 20) -> None:
        self.now, self.ran, self._seconds, self._longest = 0.0, list[StepSize](), seconds, longest

    def run(self, size: StepSize, count: int) -> list[StepCost]:
        if size.tokens > self._longest:
            return []
        found = []
        for _ in range(count):
            seconds = self._seconds(size, len(self.ran))
            self.ran.append(size)
            self.now += seconds
            found.append(StepCost(size.requests, size.tokens, 0, max(size.lengths), seconds))
        return found

    def measure(self, limits: StepLimits, seconds: float) -> Measurement:
        return measure(self.run, step_sizes(limits), seconds, clock=lambda: self.now)


@given(
    requests=st.integers(1, 300),
    tokens=st.integers(1, 4000),
    lengths=st.sets(st.integers(1, 20), min_size=1),
    pads=st.booleans(),
    graphs=st.sets(st.integers(1, 600)),
)
def test_an_engine_can_run_every_size(requests, tokens, lengths, pads, graphs):
    allowed = [0, *sorted(lengths)] if pads else list(range(max(lengths) + 1))
    sizes = step_sizes(StepLimits(requests, tokens, allowed, pads, sorted(graphs)))
    assert len(set(sizes)) == len(sizes)
    for size in sizes:
        assert 1 <= size.requests <= requests
        assert size.tokens <= tokens
        assert sum(size.lengths) == size.draft_tokens
        assert {*size.lengths} <= {*allowed}
        if pads:
            assert len({*size.lengths}) == 1
    assert not sizes or sizes[0] == (1, 0) or graphs or tokens < 1


def test_one_request_comes_first_then_batches_without_and_with_drafts():
    sizes = step_sizes(FREE)
    assert sizes[:4] == [(1, 0), (1, 1), (1, 3), (1, 7)]
    assert sizes[4:8] == [(32, 0), (32, 32), (8, 0), (8, 8)]
    assert sizes[8:12] == [(1, 15), (1, 2), (1, 5), (1, 11)]
    assert {size.requests for size in sizes} == {1, 2, 4, 8, 16, 32}


def test_a_graphs_last_size_is_timed_and_the_first_one_beyond_it():
    tokens = {size.tokens for size in step_sizes(FREE._replace(graph_sizes=(1, 2, 4, 8, 16, 32))) if size.requests == 8}
    assert {8, 9, 16, 17, 32, 33} <= tokens


def test_the_fastest_repeat_counts_and_the_first_does_not():
    seconds = [0.5, *[0.02 + 0.001 * repeat for repeat in reversed(range(REPEATS))]]
    engine = Engine(lambda size, number: seconds[number % len(seconds)])
    found = engine.measure(StepLimits(1, 1, [0]), 10.0)
    assert [cost.seconds for cost in found.costs] == [0.02]
    assert found.is_steady


@pytest.mark.parametrize("slow", [1 + REPEATS, 2 * (1 + REPEATS), 3 * (1 + REPEATS)])
def test_slow_first_steps_are_not_taken_for_the_cost_of_a_small_step(slow):
    """On a fresh server of vLLM steps of one token took 43 ms at first and 24 later, those of two to four took 23."""
    engine = Engine(lambda size, number: (0.02 + 0.001 * size.tokens) * (2 if number < slow else 1))
    found = engine.measure(FREE, 2.0)
    assert [cost.seconds for cost in found.costs] == [pytest.approx(0.02 + 0.001 * cost.tokens) for cost in found.costs]


def test_costs_of_steps_that_stall_again_are_not_kept():
    engine = Engine(lambda size, _: 0.02 if size == (1, 1) else 0.001)
    found = engine.measure(FREE, 10.0)
    assert not found.is_steady
    assert len(found.costs) == len(step_sizes(FREE))


@given(scale=st.floats(1e-4, 1.0), fixed=st.floats(0, 1.0), limit=st.floats(0.01, 20.0))
def test_steps_end_at_about_the_limit(scale, fixed, limit):
    """A size of which nothing is known is run; further ones only if they fit, where time grows as tokens do or less."""
    engine = Engine(lambda size, _: scale * (fixed + size.tokens))
    found = engine.measure(FREE, limit)
    assert [(cost.requests, cost.tokens) for cost in found.costs][:1] == [(1, 1)]
    assert engine.now <= max(limit, (1 + REPEATS) * scale * (fixed + 1)) * (1 + 1e-9)


def test_a_size_that_takes_too_long_leaves_time_for_smaller_ones():
    engine = Engine(lambda size, _: 0.001 * size.tokens)
    measured = {(cost.requests, cost.tokens) for cost in engine.measure(FREE, 2.7).costs}
    assert (32, 512) not in measured
    assert {(8, 64), (8, 128), (2, 32)} <= measured


def test_a_server_of_slow_steps_has_its_full_batch_timed_with_and_without_drafts():
    """Steps of a CPU of one core: 60 ms of weights and 3 ms for each token, two seconds for all."""
    engine = Engine(lambda size, _: 0.06 + 0.003 * size.tokens)
    measured = engine.measure(FREE, 2.0)
    assert {(32, 32), (32, 64), (8, 16)} <= {(cost.requests, cost.tokens) for cost in measured.costs}
    assert measured.is_steady
    assert engine.ran.count(StepSize(1, 0)) == 1 + REPEATS


def test_sizes_that_the_engine_does_not_run_are_left_out():
    found = Engine(lambda size, _: 0.001, longest=8).measure(FREE, 100.0)
    assert found.costs
    assert max(cost.tokens for cost in found.costs) == 8


def test_without_any_size_there_are_no_costs_to_keep():
    assert Engine(lambda size, _: 0.001, longest=0).measure(FREE, 100.0) == Measurement((), False)


@pytest.mark.parametrize(("noise", "is_steady"), [(0.15, True), (0.3, False)])
def test_a_busy_machine_is_noticed_and_its_sizes_are_timed_once_more(noise, is_steady):
    engine = Engine(lambda size, number: 0.001 * (1 + noise * (number % 2)))
    found = engine.measure(FREE, 100.0)
    assert found.is_steady == is_steady
    assert len(engine.ran) == len(step_sizes(FREE)) * (1 + REPEATS) * (1 if is_steady else 2)
    assert len(found.costs) == len(step_sizes(FREE))
