"""Steps in a stream trim their drafts as the draft stage does, and wait for nothing where the trim half is compiled."""

from __future__ import annotations

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.runtime.stream_steps import AT_START
from specplug.trim import SurvivalTrimmer
from specplug.types.host_step import HostStep
from specplug.types.plan import StepPlan
from tests.pipeline.fake_stream import FakeStream
from tests.runtime.stream_engine import Engine, run

RANDOM = st.randoms(use_true_random=False)


class Counted(FakeStream):
    """Counts marks: a step takes one at its end, and another if it waits."""

    marks = 0

    def mark(self):
        self.marks += 1
        return super().mark()


@settings(max_examples=60, deadline=None)
@given(RANDOM, st.integers(1, 14), st.integers(0, 1000))
def test_late_steps_equal_those_of_the_stage_without_a_wait(random, count, seed):
    with Counted(seed) as stream:
        engines = [Engine(streamed=False), Engine(streamed=True, stream=stream)]
        launched = engines[1].steps.intake
        steps = run(random, engines, steps=count)
        assert stream.marks == AT_START + launched.launched
        engines[1].steps.settle()
        for expected, found in steps:
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])
        plain, late = (engine.stage.metrics.snapshot() for engine in engines)
        assert late == plain
        for engine in engines:
            engine.close()


class Python(SurvivalTrimmer):
    """Overrides `trim` alone, so that its C function would be another's."""

    def trim(self, draft, limits):
        return super().trim(draft, limits)


def engine_with(trimmer, stream: FakeStream | None = None) -> Engine:
    engine = Engine(streamed=False)
    engine.stage._trimmer = trimmer
    engine.stream_with(stream)
    return engine


def repeat(engine: Engine, steps: int, plan: StepPlan) -> list[int]:
    """Return the number of drafts of each step of a request that repeats itself."""
    counts = []
    engine.start("r", 0, [1, 2, 3, 1, 2, 3, 1, 2])
    engine.steps.intake.settle()
    for number in range(steps):
        engine.emit("r", [3 if number % 3 == 0 else number % 3])
        _, confidence = engine.step([("r", 1, 0)], plan)
        engine.steps.settle()
        counts.append(int((confidence > 0).sum()))
    return counts


def test_a_trim_half_in_python_is_waited_for():
    with Counted() as stream:
        engine = engine_with(Python(), stream)
        before = stream.marks
        counts = repeat(engine, 3, StepPlan(3, 1))
        assert stream.marks == before + 2 * 3
        assert max(counts) == 1
        engine.close()


@numba.cfunc("int32(int64)")
def fails(arguments):
    return 2


class Fails(SurvivalTrimmer):
    """Its C function fails."""

    def host_trim(self):
        return HostStep(fails.address, 0)


class Lacks(SurvivalTrimmer):
    """Has no C function, which shows when it is built."""

    def host_trim(self):
        raise RuntimeError("planted")


@pytest.mark.parametrize("budget", [None, 1])
def test_a_failed_cut_drops_the_drafts_and_is_the_trim_halfs_fault(budget):
    engine = engine_with(Fails())
    counts = repeat(engine, 8, StepPlan(3, budget))
    faults = engine.stage.metrics.snapshot().faults
    if budget is None:
        assert max(counts) == 3
        assert not faults
    else:
        assert max(counts) == 0
        assert [*faults.values()] == [{"raised": 3, "switched off": 1}]
    engine.close()


def test_without_the_c_function_the_stage_trims():
    engine = engine_with(Lacks())
    assert max(repeat(engine, 4, StepPlan(3, 1))) == 1
    engine.close()
