"""A stream that refuses steps, loses them or never runs them costs drafts, and no step raises."""

from __future__ import annotations

import logging

import pytest

from specplug.errors import EngineError
from specplug.pipeline.stream import host_kernels
from specplug.pipeline.stream.launch import HostFunctionStream, InlineStream, Mark
from specplug.runtime import first_step
from specplug.runtime.first_step import started
from specplug.types.plan import StepPlan
from tests.runtime.oracle import DRAFT_LENGTH, Engine
from tests.runtime.test_stream_steps import Crossed

PLAN = StepPlan(DRAFT_LENGTH)
PROMPT = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


class Refusing(InlineStream):
    """Refuses launches while `refuses` is true."""

    refuses = False

    def launch(self, function: int, argument: int) -> None:
        if self.refuses:
            raise EngineError.build("the CUDA driver refused to launch a host function", found="planted")
        super().launch(function, argument)


class Silent(HostFunctionStream):
    """Never runs a host function."""

    def launch(self, function: int, argument: int) -> None:
        pass

    def mark(self) -> Mark:
        return Never()


class Never(Mark):
    @property
    def reached(self) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("nobody may wait for this")


class Skipping(Silent):
    """Loses host functions, and goes on."""

    def mark(self) -> Mark:
        return InlineStream().mark()


@pytest.mark.parametrize("broken", [Refusing, Silent, Skipping, Crossed])
def test_a_stream_that_does_not_work_is_found_out_at_start(broken, monkeypatch, caplog):
    monkeypatch.setattr(first_step, "LIMIT", 0.01)
    monkeypatch.setattr(Refusing, "refuses", True)
    engine = Engine(streamed=False)
    given = {"transfers": Crossed} if broken is Crossed else {"stream": broken()}
    with caplog.at_level(logging.WARNING, "specplug"):
        assert started(lambda: engine.stream_by(**given)) is None
    (warned,) = caplog.records
    assert "stream" in warned.message
    assert engine.steps is None


@pytest.fixture
def streamed():
    """An engine, its stream, and one request that repeats itself."""
    engine, stream = Engine(streamed=False), Refusing()
    engine.stream_by(stream=stream)
    engine.start("a", 1, PROMPT)
    yield engine, stream
    engine.close()


def draft(engine: Engine, name: str = "a", token: int = 1) -> list[int]:
    """Emit a token, take a step, and return the row's draft."""
    engine.emit(name, [token])
    ids, *_ = engine.step([(name, 1, 0)], PLAN)
    engine.steps.settle()
    return ids[0].tolist()


@pytest.mark.parametrize("part", ["launch", "unpack"])
def test_a_step_that_fails_costs_drafts_and_its_row_loses_nothing(streamed, monkeypatch, part):
    engine, stream = streamed
    assert draft(engine, token=2) == [3, 0, 1]
    before = len(engine.steps._ring)
    with monkeypatch.context() as patch:
        if part == "launch":
            patch.setattr(stream, "refuses", True)
        else:
            patch.setattr(host_kernels, "unpack", lambda *_: 1 / 0)
        for token in (3, 0):
            assert draft(engine, token=token) == [0] * DRAFT_LENGTH
    assert draft(engine, token=1) == [2, 3, 0]
    assert len(engine.steps._ring) == before, "the memory of steps that failed is used again"
    assert faults(engine) == {"stream": {"raised": 2}}


def test_after_repeated_faults_the_stream_is_left_alone_for_a_while(streamed):
    engine, stream = streamed
    stream.refuses, launched = True, []
    for _ in range(3):
        draft(engine)
    assert faults(engine)["stream"] == {"raised": 3, "switched off": 1}
    stream.refuses = False
    stream.launch = lambda *given: (launched.append(1), InlineStream.launch(stream, *given))
    drafts = [draft(engine, token=token % 4) for token in range(70)]
    assert drafts[:64] == [[0] * DRAFT_LENGTH] * 64
    assert len(launched) == 6
    assert drafts[-1] == [2, 3, 0], "it drafts again, from all that was emitted meanwhile"
    assert faults(engine)["stream"]["came back"] == 1


def faults(engine: Engine) -> dict[str, dict[str, int]]:
    return {name: dict(kinds) for name, kinds in engine.stage.metrics.snapshot().faults.items() if kinds}
