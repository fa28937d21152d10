"""Drafting resumes at once after steps without drafts, however many there were: no row's backlog makes it wait."""

from __future__ import annotations

import itertools

import pytest

from specplug.pipeline.cpu import host_function
from specplug.runtime import stream_steps
from specplug.types.plan import StepPlan
from tests.runtime import oracle
from tests.runtime.oracle import DRAFT_LENGTH, Engine

PLAN = StepPlan(DRAFT_LENGTH)
CYCLE, LENGTH = [0, 1, 2, 3], 12000


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(oracle, "LENGTH", LENGTH)
    engine = Engine(streamed=True)
    yield engine
    engine.close()


class Rows:
    """Requests whose texts repeat the same tokens."""

    def __init__(self, engine, *names):
        self._engine, self._names, self._next = engine, list(names), itertools.cycle(CYCLE)

    def start(self):
        for slot, name in enumerate(self._names):
            self._engine.start(name, slot, CYCLE * 2)
        return self

    def emit(self):
        token = next(self._next)
        for name in self._names:
            self._engine.emit(name, [token])

    def idle(self, steps):
        for _ in range(steps):
            self.emit()
            self._engine.idle(self._names, len(self._names))

    def step(self):
        """Take a step with drafts; return the confidence of each row's first draft token."""
        self.emit()
        return self._engine.step([(name, 1, 0) for name in self._names], PLAN)[1][:, 0]


@pytest.mark.parametrize("idle", [60, 200, 512, 10000])
def test_the_first_step_drafts_for_every_row(engine, idle):
    rows = Rows(engine, "a", "b").start()
    assert (rows.step() > 0).all()
    rows.idle(idle)
    assert (rows.step() > 0).all()


def test_so_it_does_for_requests_that_began_meanwhile(engine):
    Rows(engine, "a", "b").start().idle(300)
    engine.start("c", 2, CYCLE * 100)
    assert engine.stage.runners[0].ingested[2] == len(CYCLE) * 100, "without a step"
    late = Rows(engine, "c")
    late.idle(300)
    assert (late.step() > 0).all()


def test_what_a_step_ingests_is_bounded_over_all_rows(engine, monkeypatch):
    """The first rows get their whole backlog; the others get it in later steps, and are called late until then."""
    monkeypatch.setattr(stream_steps, "MOST_MISSED", LENGTH)
    engine.stream_with(None)
    rows = Rows(engine, "a", "b", "c").start()
    rows.idle(6000)
    assert host_function.MOST_NEW < 2 * 6000
    found = [(rows.step() > 0, list(engine.reports[-1].late)) for _ in range(3)]
    assert [drafted.tolist() for drafted, _ in found] == [[True, False, False], [True, True, False], [True] * 3]
    assert [late for _, late in found] == [["b", "c"], ["c"], []]


def test_no_memory_is_allocated_while_serving(engine):
    rows = Rows(engine, "a", "b").start()
    buffers = [step.buffers.newest for step in engine.steps._ring._objects]
    assert len(buffers) == stream_steps.AT_START
    rows.idle(3000)
    rows.step()
    assert all(step.buffers.newest is it for step, it in zip(engine.steps._ring._objects, buffers, strict=True))
