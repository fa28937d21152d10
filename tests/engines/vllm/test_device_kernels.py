"""The kernels around a device proposer: equal to the draft stage in Triton's interpreter, and compiled for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps import trim as survival
from specplug.steps.device_step import DraftOutputs
from specplug.steps.device_steps import launches_for
from specplug.types.caps import Distribution
from specplug.types.step import StepPlan
from tests.engines.interpreted import device_kernels
from tests.steps.oracle import (
    CPU,
    DRAFT_LENGTH,
    Engine,
    Scripted,
    Watching,
    compare,
    lookup_stage,
    random_script,
    scripted_stage,
)
from tests.steps.transfers import POISON


@pytest.fixture(scope="module")
def launches():
    with device_kernels(interpreted=True), trimming_by_tensors():
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


def repeating(engines: list[Engine], steps: int) -> list[list[DraftOutputs]]:
    """Take steps of two requests whose texts repeat themselves, and of one that ends; return their drafts."""
    found = []
    length = {"a": 18, "b": 11, "gone": 7}
    for engine in engines:
        for slot, (name, count) in enumerate(length.items()):
            engine.start(name, 2 - slot, [k % (3 + slot % 2) for k in range(count)])
    for number in range(steps):
        names = [name for name in length if name != "gone" or number < 5]
        plan = StepPlan(0 if number % 7 == 3 else DRAFT_LENGTH)
        outputs = []
        for engine in engines:
            for name in names:
                slot = [*length].index(name)
                engine.emit(name, [(length[name] + k) % (3 + slot % 2) for k in range(2)])
            outputs.append(engine.step([(name, 2, 1) for name in names], plan))
        length.update({name: length[name] + 2 for name in names})
        found.append(outputs)
    return found


@pytest.mark.parametrize(("reports", "engine_tokens"), [(True, 0), (False, 2)])
def test_lookups_drafts_are_those_of_the_stage_and_old_tokens_are_not_read_again(launches, reports, engine_tokens):
    """The engine's table is in host memory on V2: one of the engines forgets what was in it, also of idle steps."""
    stages = [lookup_stage(engine_tokens=engine_tokens) for _ in range(3)]
    engines = [Engine(stage, launches=each) for stage, each in zip(stages, (None, launches, launches), strict=True)]
    engines[2].forgets = True
    for engine in engines:
        engine.reports_expected = reports
    for first, *others in repeating(engines, 9):
        for other in others:
            assert torch.equal(first.ids, other.ids)
            assert torch.equal(first.confidence, other.confidence)
    assert engines[0].left() == engines[1].left()
    assert engines[0].stage.metrics.snapshot().total.proposed > 20
    assert engines[2].texts.max() == POISON
