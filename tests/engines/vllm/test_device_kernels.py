"""The kernels around a device proposer: equal to the draft stage in Triton's interpreter, and compiled for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.pipeline.device.columns import launches_for
from specplug.trim import survival
from specplug.types.caps import Distribution
from specplug.types.plan import StepPlan
from tests.engines.interpreted import imported_anew
from tests.runtime.oracle import CPU, Engine, Scripted, Watching, compare, random_script, scripted_stage

NAME = "specplug.pipeline.device.kernels"


@pytest.fixture(scope="module")
def launches():
    with imported_anew(NAME, interpreted=True), trimming_by_tensors():
        yield launches_for(CPU)


@contextmanager
def trimming_by_tensors() -> Iterator[None]:
    """Let trimmers do without their kernel, which takes most of a step in the interpreter; see `test_trim_kernel`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survival, "_has_triton", lambda: False)
        yield


@settings(max_examples=16)
@given(st.integers(0, 1 << 30), *[st.booleans()] * 5, st.sampled_from([0, 0, 2]))
def test_steps_equal_those_of_the_stage(launches, seed, mixed, learns, trims, states, reports, engine_tokens):
    """Both engines run the same schedule; in one, kernels take all steps, or any of them."""
    random = Random(seed)
    script = random_script(random)
    distribution = Distribution.LOGITS if states else Distribution.ONE_HOT
    given = {"learns": learns, "distribution": distribution, "engine_tokens": engine_tokens}
    trimmer = Watching if trims else survival.SurvivalTrimmer
    stages = [scripted_stage(Scripted(script), trimmer(), **given) for _ in range(2)]
    engines = [Engine(stage, launches=each) for stage, each in zip(stages, (None, launches), strict=True)]
    for engine in engines:
        engine.reports_expected = reports
    if mixed:
        engines[1].by_kernels = partial(random.choice, [False, True])
    assert compare(random, engines, steps=15)[1] == []


def two_tokens(launches) -> Engine:
    """Return an engine whose proposer drafts two tokens a step, between kernels."""
    script = [([1, 2], 0.5, 0, "")]
    return Engine(scripted_stage(Scripted(script), survival.SurvivalTrimmer(), learns=False), launches=launches)


def test_a_draft_of_the_occupant_before_is_no_draft(launches):
    """A request takes a slot at the length at which the one before it left."""
    engine = two_tokens(launches)
    for name, prompt in (("a", [1, 2, 3]), ("b", [1, 2, 3, 0])):
        engine.start(name, 1, prompt)
        engine.emit(name, [0])
        engine.step([(name, 1, 2)], StepPlan(2))
        engine.finish(name, None)
    assert engine.stage.metrics.snapshot().total.proposed == 0


def test_the_stage_finds_the_drafts_of_kernels(launches):
    """Also where its own step before them has left no draft in flight."""
    engine = two_tokens(launches)
    engine.start("a", 1, [1, 2, 3])
    for by_kernels, draft_length in ((False, 0), (True, 2), (False, 2)):
        engine.by_kernels = partial(bool, by_kernels)
        engine.emit("a", [0])
        engine.step([("a", 1, 2)], StepPlan(draft_length))
    assert engine.stage.metrics.snapshot().total.proposed == 2


def test_the_engines_drafter_drafts_one_token_while_its_tokens_are_not_in_the_drafts(launches):
    """After two steps, and all of them once in 16; each record is read once, also where many have not been."""
    script = [([1, 2], 0.5, 0, "")] * 40 + [([1, 2], 0.5, 1, "")]
    stage = scripted_stage(Scripted(script), survival.SurvivalTrimmer(), learns=False, engine_tokens=2)
    engine = Engine(stage, launches=launches)
    engine.start("a", 1, [1, 2, 3])
    wanted = []
    for number in range(42):
        engine.emit("a", [0])
        outputs = engine.step([("a", 1, 0)], StepPlan(2))
        if number < 20 or number > 38:
            wanted.append(engine._by_device.engine_tokens())
            assert engine._by_device.engine_tokens() == wanted[-1]
        assert outputs.from_engine.tolist() == [number == 40]
    assert wanted == [2] + [1] * 14 + [2] + [1] * 5 + [2] + [2]
