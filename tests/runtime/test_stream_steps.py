"""Steps in a stream give the drafts and counts of the draft stage that they stand in for, also when they run late."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.fake_stream import FakeStream
from tests.runtime.stream_engine import Engine, run

RANDOM, STEPS = st.randoms(use_true_random=False), st.integers(1, 14)


@settings(max_examples=150, deadline=None)
@given(RANDOM, STEPS)
def test_steps_equal_those_of_the_stage(random, count):
    engines = [Engine(streamed=False), Engine(streamed=True)]
    for expected, found in run(random, engines, steps=count):
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    plain, streamed = engines
    streamed.steps.settle()
    assert streamed.stage.metrics.snapshot() == plain.stage.metrics.snapshot()
    learnt = [learnt_by(engine) for engine in engines]
    assert learnt[1] == learnt[0]
    for engine in engines:
        engine.close()


def learnt_by(engine: Engine) -> list[bytes]:
    return [table.tobytes() for table in engine.stage.proposers["ngram"].lookup.tables.arrays]


@settings(max_examples=60, deadline=None)
@given(RANDOM, STEPS, st.integers(0, 1000))
def test_late_steps_equal_those_that_run_at_once(random, count, seed):
    with FakeStream(seed) as stream:
        engines = [Engine(streamed=True), Engine(streamed=True, stream=stream)]
        steps = run(random, engines, steps=count)
        engines[1].steps.settle()
        for expected, found in steps:
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])
        at_once, late = (engine.stage.metrics.snapshot() for engine in engines)
        assert late == at_once
        for engine in engines:
            engine.close()
