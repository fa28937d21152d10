"""The proposer `hybrid` decides which part drafts for which row, and whether the model runs at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from specplug.testing.batches import make_batch
from specplug.types.request import EngineEvent, Lifecycle, Request, RequestEvent
from specplug_hybrid import proposer
from tests.proposers.hybrid_tools import DRAFT_LENGTH, Clock, Made, ids, rows
from tests.steps.tools import draft_nothing

FOUND = rows([5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [], confidence=0.9)  # 3.69 expected
SURE = rows([5, 6], [5, 6], [], confidence=1.0)
DRAFTED = rows([5, 6], [1, 2], [3, 4])
SEVERAL = [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [3, 4]]


TRIED_EVERY = 8


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(proposer, "time", made)
    monkeypatch.setattr(proposer, "_TRIED_EVERY", TRIED_EVERY)
    return made


@pytest.fixture
def made(clock: Clock):
    held: list[Made] = []

    def make(*args: Any, **kwargs: Any) -> Made:
        held.append(Made(*args, **kwargs))
        return held[-1]

    yield make
    for each in held:
        each.stage.close()


@pytest.mark.parametrize(
    ("found", "learnt", "length", "expected", "limits"),
    [
        (FOUND, [], DRAFT_LENGTH, SEVERAL, [0, 0, DRAFT_LENGTH]),
        # what the model's drafts are worth is known by request
        (FOUND, [(1, 8), (0, 0)] * 40, DRAFT_LENGTH, [SEVERAL[0], [1, 2], [3, 4]], [0, DRAFT_LENGTH, DRAFT_LENGTH]),
        # no more is expected of the model than a draft may have
        (SURE, [(0, 8), (1, 8), (2, 8)], 1, [[5], [5], [3]], [0, 0, 1]),
        (SURE, [(0, 8), (1, 8), (2, 8)], 4, [[5, 6], [1, 2], [3, 4]], [4, 4, 4]),
    ],
)
def test_each_row_has_the_draft_that_is_expected_to_have_more_accepted(made, found, learnt, length, expected, limits):
    it = made(found, DRAFTED)
    for slot, accepted in learnt:
        it.hybrid.gains.learn(slot, accepted)
    assert ids(it.draft(length)) == expected
    assert (it.lookup.limits, it.model.limits) == ([[length] * 3], [limits])


def test_lookups_rest_follows_a_model_that_agrees(made):
    it = made(rows(*[[5, 6, 7, 8]] * 3, confidence=0.5), rows([5, 6], [5, 9], [5, 6, 7, 8, 9]))
    draft = it.draft()
    assert ids(draft) == [[5, 6, 7, 8], [5, 9], [5, 6, 7, 8, 9]]
    own, other, model = (f"hybrid/{name}" for name in ("lookup/own", "lookup/other", "model"))
    assert it.stage.sources == (own, other, model)
    assert draft.source[0].tolist() == [2, 2, 0, 0, -1, -1, -1, -1]
    it.verify([4, 1, 0])
    counts = it.counts()
    assert [counts[name] for name in it.stage.sources] == [(2, 2), (0, 0), (9, 3)]


def test_only_the_models_own_tokens_are_its_gain(made):
    it = made(rows(*[[5, 6, 7, 8]] * 3, confidence=0.5), rows([5, 6], [1], []))
    it.draft()
    before = it.hybrid.gains.expected([0, 1, 2])
    it.verify([4, 0, 3])
    learnt: list[tuple[int, int]] = []
    it.hybrid.gains.learn = lambda slot, accepted: learnt.append((slot, accepted))
    it.draft()
    it.verify([4, 0, 3])
    assert learnt == [(0, 2), (1, 0)]
    it.draft()
    it.verify([0, 0, 0], verified=0)
    assert len(learnt) == 2
    assert before.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("found", [FOUND, rows(*[[5] * 8] * 3, confidence=1.0)], ids=["for some", "for all"])
def test_it_does_not_run_where_no_row_gains(made, found):
    it = made(found, DRAFTED)
    for slot in range(3):
        for _ in range(300):
            it.hybrid.gains.learn(slot, 0)
    it.hybrid.gains.learn(2, 4)
    for _ in range(2 * TRIED_EVERY):
        it.draft()
    expected = [[0, 0, DRAFT_LENGTH]] * 2 * TRIED_EVERY if found is FOUND else []
    assert it.model.limits == expected
    assert len(it.model.handed) == len(it.lookup.handed) == 2 * TRIED_EVERY


def test_it_does_not_run_where_it_does_not_pay_and_is_tried_again(made):
    it = made(FOUND, DRAFTED)
    it.hybrid.gains.step_seconds, it.hybrid.gains.model_seconds = 1e-3, 1e6
    ran = []
    for _ in range(2 * TRIED_EVERY + 4):
        before = len(it.model.limits)
        drafted = ids(it.draft())
        ran.append(len(it.model.limits) > before)
        assert drafted == (SEVERAL if ran[-1] else [*SEVERAL[:2], []])
    assert [step for step, it_ran in enumerate(ran) if it_ran] == [TRIED_EVERY, 2 * TRIED_EVERY + 1]


@pytest.mark.parametrize(
    ("found", "step_seconds", "model_seconds", "runs"),
    [
        (draft_nothing, 1.0, 1.9, True),  # 9 tokens in 2.9 s instead of 3 in 1 s: 2 more for each row
        (draft_nothing, 1.0, 2.1, False),
        (FOUND, 5.3, 1.0, True),  # 12.4 tokens instead of 10.4, of which lookup's drafts have 7.4
        (FOUND, 5.1, 1.0, False),
    ],
)
def test_it_runs_if_it_pays(made, found, step_seconds, model_seconds, runs):
    it = made(found, DRAFTED)
    it.hybrid.gains.step_seconds, it.hybrid.gains.model_seconds = step_seconds, model_seconds
    it.draft()
    assert bool(it.model.limits) == runs


def test_both_parts_ingest_at_all_steps(made):
    """At those without the model, at those where it drafts for some rows, and at those without drafts."""
    it = made(FOUND, DRAFTED)
    it.draft()
    it.hybrid.gains.step_seconds, it.hybrid.gains.model_seconds = 1e-3, 1e6
    it.draft()
    it.length += 1
    it.stage.ingest(make_batch([range(it.length)] * 3, vocab_size=512, generations=[0] * 3))
    it.draft()
    for part in (it.lookup, it.model):
        assert [handed[0, 0] for handed in part.handed] == [[0, 1, 2], [3], [4], [5]]
    assert (len(it.lookup.limits), len(it.model.limits)) == (3, 1)


def test_the_models_time_is_its_own_and_the_steps_is_the_rest(made, clock):
    def taking(seconds: float, write):
        def run(*args: Any) -> None:
            clock.now += seconds
            write(*args)

        return run

    it = made(taking(1.0, FOUND), taking(10.0, rows(*[[1, 2, 3, 4, 5, 6, 7, 8]] * 3)))
    for _ in range(40):
        it.hybrid.gains.learn(2, 8)
        it.draft()
        clock.now += 25.0  # the target
    assert it.model.limits
    assert it.hybrid.gains.model_seconds == pytest.approx(10.0)
    assert it.hybrid.gains.step_seconds == pytest.approx(26.0)
    status = it.hybrid.status()["hybrid"]
    assert status == {"steps": 40, "steps_with_model": len(it.model.limits), "step_ms": 26000.0, "model_ms": 10000.0}


def test_a_time_in_which_no_request_ran_is_no_step(made, clock):
    it = made(draft_nothing, DRAFTED)
    for request in range(8):
        it.generation = request
        it.draft()
        clock.now += 5.0
    assert it.hybrid.gains.step_seconds == 0.0
    it.draft()
    assert it.hybrid.gains.step_seconds == 5.0


def test_parts_of_parts_are_credited(made):
    it = made(draft_nothing, DRAFTED, within="nested")
    assert ids(it.draft()) == [[5, 6], [1, 2], [3, 4]]
    it.verify([2, 1, 0])
    assert it.counts()["hybrid/nested/model"] == (6, 3)
    assert it.hybrid.gains.expected([0])[0] > it.hybrid.gains.expected([2])[0]
    ((_, seen, _),) = it.model.observed
    assert seen.source[:, :2].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("within", ["model", "nested"])
def test_a_model_that_fails_costs_its_own_drafts(made, within):
    it = made(FOUND, DRAFTED, within=within)
    it.model.fails = {"propose", "observe", "on_event"}
    assert ids(it.draft()) == [*SEVERAL[:2], []]
    it.verify([5, 5, 0])
    it.stage.on_event(EngineEvent("cache flushed"))
    it.model.fails = set()
    assert ids(it.draft()) == SEVERAL
    name = "hybrid/model" if within == "model" else "hybrid/nested/model"
    assert it.stage.metrics.snapshot().faults == {name: {"raised": 3}}
    assert len(it.lookup.observed) == 1
    assert len(it.lookup.events) == 1


def test_a_model_that_is_late_costs_its_own_drafts(made):
    it = made(FOUND, DRAFTED, faults={"host_deadline_ms": 50}, needs_host=True)
    free = threading.Event()
    it.model.write = lambda *_: free.wait(30)
    for _ in range(2):
        assert ids(it.draft()) == [*SEVERAL[:2], []]
    free.set()
    assert set(it.stage.metrics.snapshot().faults) == {"hybrid/model"}


def test_a_model_that_was_switched_off_gets_what_it_missed(made):
    """The engine hands over whole texts, so that a part can get more than the newest tokens."""
    it = made(FOUND, DRAFTED, faults={"max_consecutive": 1, "cooldown_steps": 2}, incremental=True, needs_host=True)
    it.draft()
    it.model.fails = {"propose"}
    it.draft()
    it.model.fails = set()
    for _ in range(3):
        draft = it.draft()
    assert ids(draft) == SEVERAL
    assert [handed[0, 0] for handed in it.model.handed] == [[0, 1, 2], [3], [0, 1, 2, 3, 4, 5, 6]]


def test_a_request_that_leaves_is_forgotten(made):
    it = made(FOUND, DRAFTED)
    request = Request("a", 3, 9)
    it.hybrid.gains.learn(0, 8)
    kept = it.hybrid.gains.expected([0])[0]
    it.stage.on_event(RequestEvent(Lifecycle.STARTED, request, 0, 0))
    assert it.hybrid.gains.expected([0])[0] == kept
    it.stage.on_event(RequestEvent(Lifecycle.FINISHED, request, 0, 0, 3))
    assert it.hybrid.gains.expected([0])[0] == it.hybrid.gains.expected([2])[0] < kept
    assert [len(part.events) for part in (it.lookup, it.model)] == [2, 2]
