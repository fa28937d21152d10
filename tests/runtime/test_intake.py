"""Requests are taken in beside the steps: after those that were launched before, and without costing anybody else."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch

from specplug.types.plan import StepPlan
from tests.match.driver import held
from tests.pipeline.fake_stream import FakeStream
from tests.runtime.oracle import DRAFT_LENGTH, Engine

PLAN = StepPlan(DRAFT_LENGTH)
TEXT = [0, 1, 2, 3, 0, 1]
NOTHING = torch.zeros(1, DRAFT_LENGTH)


@pytest.fixture
def stream():
    """A stream that runs its work on demand."""
    with FakeStream() as stream:
        yield stream


@pytest.fixture
def late(stream):
    """An engine whose steps run in it."""
    engine = Engine(streamed=True, stream=stream)
    stream.drain()
    yield engine
    stream.drain()
    engine.close()


def step(engine: Engine, *names: str, token: int = 2) -> torch.Tensor:
    """Let each request emit a token; return the confidences of their drafts, perhaps filled later."""
    for name in names:
        engine.emit(name, [token])
    return engine.step([(name, 1, 0) for name in names], PLAN)[1]


def test_a_request_is_taken_in_after_the_steps_before_it(stream, late):
    late.start("old", 0, TEXT)
    late.steps.intake.settle()
    first = step(late, "old")
    step(late, "old", token=3)
    late.finish("old", 8)
    late.start("new", 0, [3, 3, 3, 3])
    second = step(late, "new", token=3)
    stream.run(5)  # up to the second step's host function
    late.steps.intake.settle()
    lookup = late.stage.proposers["ngram"].lookup
    assert lookup.texts.text[0, :4].tolist() == [3, 3, 3, 3]
    assert lookup.responses._ends[0] > 0
    stream.drain()
    assert first[0, 0] > 0  # its slot's text was still there
    assert second[0, 0] > 0


def test_a_row_whose_text_is_not_ingested_yet_drafts_nothing_and_is_no_fault(stream, late, monkeypatch):
    proposer, ready = late.stage.proposers["ngram"], threading.Event()
    begin = proposer.begin_text

    def slow(slot: int, tokens: np.ndarray) -> None:
        if slot == 1:
            ready.wait()
        begin(slot, tokens)

    monkeypatch.setattr(proposer, "begin_text", slow)
    late.start("quick", 0, TEXT)
    late.start("slow", 1, TEXT)
    while late.stage.runners[0].generations[0] < 1:
        pass
    late.reports_expected = True
    early = step(late, "quick", "slow")
    stream.drain()
    assert early[0, 0] > 0
    assert torch.equal(early[1:], NOTHING)
    report = late.reports[-1]
    for found in (report, pickle.loads(pickle.dumps(report))):
        assert (tuple(found.late), found.expected_rows) == (("slow",), 1)
        assert found.expected == pytest.approx(early[0].cumprod(0).tolist())
    ready.set()
    late.steps.intake.settle()
    later = step(late, "quick", "slow", token=3)
    stream.drain()
    assert (later[:, 0] > 0).all()
    assert list(late.reports[-1].late) == []
    assert late.reports[-1].expected_rows == 2
    assert late.stage.runners[0].ingested.tolist()[:2] == [8, 8]  # with what was emitted meanwhile
    assert late.stage.metrics.snapshot().faults == {}


@pytest.mark.parametrize("method", ["on_event", "begin_text"])
def test_a_request_that_cannot_be_taken_in_costs_no_other_one(stream, late, monkeypatch, method):
    """A text whose event raised is ingested all the same; one that cannot be ingested is never drafted from."""
    proposer = late.stage.proposers["ngram"]
    right = getattr(proposer, method)

    def wrong(first, *others):
        if first == 1 or getattr(first, "slot", None) == 1:
            raise ZeroDivisionError("planted")
        right(first, *others)

    monkeypatch.setattr(proposer, method, wrong)
    late.start("right", 0, TEXT)
    late.start("wrong", 1, TEXT)
    late.steps.intake.settle()
    step(late, "right", "wrong")  # the fault is counted, and costs all drafts of a step
    drafted = step(late, "right", "wrong", token=3)
    stream.drain()
    assert drafted[0, 0] > 0
    assert (drafted[1, 0] > 0) == (method == "on_event")
    assert late.stage.metrics.snapshot().faults == {"ngram": {"raised": 1}}


def test_a_step_that_finds_the_proposer_busy_drafts_nothing_and_loses_nothing(stream, late):
    late.start("r", 0, TEXT)
    late.steps.intake.settle()
    with held(late.stage.proposers["ngram"].lookup):
        busy = step(late, "r")
        stream.drain()
    assert torch.equal(busy, NOTHING)
    assert list(late.reports[-1].late) == ["r"]
    drafted = step(late, "r", token=3)
    stream.drain()
    assert drafted[0, 0] > 0
    assert list(late.reports[-1].late) == []
    late.steps.settle()
    assert late.steps.busy == 1
    assert late.stage.metrics.snapshot().faults == {}


def test_a_malformed_draft_is_a_fault_and_is_dropped():
    engine = Engine(streamed=True)
    engine.start("r", 0, TEXT)
    for it in engine.steps._ring._objects:
        it.control.vocab_size = 1  # all other ids are outside
    for _ in range(4):
        assert torch.equal(step(engine, "r"), NOTHING)
    faults = engine.stage.metrics.snapshot().faults["ngram"]
    assert faults["malformed"] == 3
    assert faults["switched off"] == 1
    engine.close()


def test_a_close_waits_for_the_steps_and_ends_the_thread(stream):
    engine = Engine(streamed=True, stream=stream)
    engine.start("r", 0, TEXT)
    engine.steps.intake.settle()
    drafted = step(engine, "r")
    engine.finish("r", 7)
    engine.close()
    assert drafted[0, 0] > 0
    assert stream.waiting == 0
    assert not [it for it in threading.enumerate() if it.name == "specplug-ngram" and it.is_alive() and not it.daemon]


def test_a_proposer_that_cannot_tell_whether_it_is_outdated_costs_no_step(stream, late, monkeypatch):
    def wrong() -> bool:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(late.stage.proposers["ngram"], "is_outdated", wrong)
    late.start("right", 0, TEXT)
    late.steps.intake.settle()
    step(late, "right")
    drafted = step(late, "right", token=3)
    stream.drain()
    assert drafted[0, 0] > 0
    assert late.stage.runners[0].guard.counts["raised"] == 2
