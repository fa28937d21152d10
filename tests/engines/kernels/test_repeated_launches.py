"""Launches that are made again: a step by them is the step, and a step that did more is taken whole."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch

from specplug.lookup import steps
from specplug.steps.device_steps import Launches, launches_for
from specplug.steps.repeated_launches import Repeated
from specplug.types.step import StepPlan
from tests.engines.interpreted import device_kernels
from tests.engines.launch import PLUGINS
from tests.engines.vllm.test_device_kernels import repeating
from tests.steps.oracle import CPU, DRAFT_LENGTH, Engine, lookup_stage


@pytest.fixture(scope="module")
def launches() -> Iterator[Launches | None]:
    """The kernels around a step, interpreted; the lookup's are compiled code, launched like kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        form = importlib.import_module("specplug_testkit.launched").FORM
    with device_kernels(interpreted=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "form_for", lambda device: form)
        yield launches_for(CPU)


class Layouts(Random):
    """Of an engine that allocates its tensors alike in most steps, and anyhow in the others."""

    def randint(self, a: int, b: int) -> int:
        return b if self.random() < 0.01 else a

    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the steps whose launches are made again."""
    found: list[int] = []
    launch = Repeated.launch

    def counted(self: Repeated, inputs: Any, number: int) -> None:
        found.append(number)
        launch(self, inputs, number)

    monkeypatch.setattr(Repeated, "launch", counted)
    return found


@pytest.mark.parametrize(("reports", "engine_tokens"), [(True, 0), (False, 2)])
def test_steps_are_the_same_whether_launches_are_made_again_or_not(
    launches: Launches, repeated: list[int], reports: bool, engine_tokens: int
) -> None:
    engines = [Engine(lookup_stage(engine_tokens=engine_tokens), launches=launches) for _ in range(2)]
    engines[0].proposer.may_repeat = lambda: False
    for engine in engines:
        engine.reports_expected, engine._layout = reports, Layouts(1)
    for first, other in repeating(engines, 20):
        assert torch.equal(first.ids, other.ids)
        assert torch.equal(first.confidence, other.confidence)
    assert engines[0].left() == engines[1].left()
    first, other = ([(it.expected_rows, it.expected) for it in engine.reports] for engine in engines)
    assert first == other
    assert engines[1].stage.metrics.snapshot().total.proposed > 60
    assert len(repeated) > 8
    assert repeated == sorted(set(repeated) - {0})


@pytest.mark.parametrize("change", ["none", "off", "raises", "layout", "plan", "state"])
def test_a_step_that_may_differ_is_taken_whole(launches: Launches, repeated: list[int], change: str) -> None:
    engine = Engine(lookup_stage(), launches=launches)
    engine._layout = Layouts(1)
    repeating([engine], 3)
    number = len(repeated)
    assert number
    plan = StepPlan(DRAFT_LENGTH, token_budget=1 if change == "plan" else None)
    if change == "off":
        engine.stage.runners[0].guard._cooldown_left = 2
    elif change == "raises":
        engine.proposer.may_repeat = lambda: 1 // 0
    elif change == "layout":
        engine._layout = Random(1)
    elif change == "state":
        engine.proposer.steps._use(engine.proposer.steps.state._replace())
    for name in ("a", "b", "gone"):
        engine.emit(name, [0, 1])
    engine.step([(name, 2, 1) for name in ("a", "b", "gone")], plan)
    assert len(repeated) == number + (change == "none")
    assert engine.stage.runners[0].guard.counts["raised"] == (change == "raises")
