"""Steps in a stream after the engine's own drafter: whose tokens a draft begins with, and how many."""

from __future__ import annotations

from random import Random

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.runtime.stream_steps import TRIED_EVERY
from specplug.types.host_step import BUSY, FAILED, HostStep
from specplug.types.plan import StepPlan
from specplug.types.request import RequestOptions
from tests.pipeline.fake_stream import FakeStream
from tests.runtime.oracle import DRAFT_LENGTH, SLOTS, VOCAB, Engine, compare, lookup_stage
from tests.runtime.test_stream_faults import Refusing

PROMPT, WRONG = [0, 1, 2, 3, 0, 1, 2, 3, 0], [4, 4]
UNMATCHED = [1, 2, 3, 1, 2, 3, 1, 2]
ENGINE_TOKENS = len(WRONG)


class Extended(Engine):
    """An engine with a drafter of its own, whose drafts are `engine_ids` [S, G] by row."""

    def __init__(self, **given):
        self.engine_ids = torch.zeros(SLOTS, ENGINE_TOKENS, dtype=torch.int64)
        super().__init__(lookup_stage(engine_tokens=ENGINE_TOKENS), streamed=True, **given)

    def _rows(self, slots, emitted, rejected):
        return super()._rows(slots, emitted, rejected)._replace(engine_ids=self.engine_ids)

    def _outputs(self, size):
        return super()._outputs(size)._replace(from_engine=torch.full((size,), -9, dtype=torch.int32))

    def draft(self, token, engine_ids, plan=None, rejected=0):
        """Emit a token of the request "a", and return its draft and how many of its tokens are the engine's."""
        self.engine_ids[0] = torch.tensor(engine_ids)
        self.emit("a", [token])
        outputs = self.step([("a", 1, rejected)], plan or StepPlan(DRAFT_LENGTH))
        self.steps.settle()
        count = int((outputs.confidence[0] > 0).sum())
        return outputs.ids[0, :count].tolist(), int(outputs.from_engine[0])


@pytest.fixture
def engine():
    """One request repeats itself."""
    return started(PROMPT)


def started(prompt, **of_request):
    found = Extended()
    found.start("a", 1, prompt, **of_request)
    found.steps.intake.settle()
    return found


@numba.cfunc("int32(int64)")
def fails(arguments):
    return FAILED


@numba.cfunc("int32(int64)")
def is_busy(arguments):
    return BUSY


@pytest.mark.parametrize("function", [fails, is_busy])
def test_the_engines_draft_stands_where_the_proposer_fails_or_is_busy(engine, function):
    """It stands also once the proposer is switched off."""
    engine.steps._step = HostStep(function.address, 0)
    for number in range(8):
        assert engine.draft((number + 1) % 4, WRONG) == (WRONG, 2)
    faults = engine.stage.metrics.snapshot().faults
    assert bool(faults) is (function is fails)
    assert engine.steps.busy == (8 if function is is_busy else 0)
    counts = engine.stage.metrics.snapshot().by_source["ngram/engine"]
    assert (counts.proposed, counts.verified) == (8 * 2 - 2, 0), "the last draft has no verdict yet"


def test_the_engines_draft_stands_where_text_is_missing(engine):
    engine.emit("a", [1, 2, 3, 0, 1, 2, 3, 0])
    assert engine.draft(1, WRONG) == (WRONG, 2)
    assert [*engine.reports[-1].late] == ["a"]


def test_lookup_continues_the_engines_tokens():
    engine = started(UNMATCHED)
    assert engine.draft(0, [1, 2]) == ([1, 2, 3], 2)


def test_lookups_own_draft_stands_once_the_engine_was_often_wrong(engine):
    for number in range(8):
        engine.draft((number + 1) % 4, WRONG)
    assert engine.draft(1, WRONG) == ([2, 3, 0], 0)
    engine.steps._step = HostStep(fails.address, 0)
    assert engine.draft(2, WRONG) == (WRONG, 2)


def test_the_engine_drafts_one_token_while_lookups_draft_stands(engine):
    wanted = []
    for number in range(8 + 2 * TRIED_EVERY):
        wanted.append(engine.steps.engine_tokens())
        engine.draft((number + 1) % 4, WRONG)
    assert set(wanted[:8]) == {ENGINE_TOKENS, 1}
    assert sorted(wanted[-TRIED_EVERY:]) == [1] * (TRIED_EVERY - 1) + [ENGINE_TOKENS]
    engine.emit("a", [4, 3, 1, 4])
    engine.draft(3, [2, 1])
    assert engine.steps.engine_tokens() == ENGINE_TOKENS


LIMITS = {
    "the plan": (StepPlan(1), {}, 1),
    "the plan's cap": (StepPlan(DRAFT_LENGTH, caps={"a": 1}), {}, 1),
    "the request's cap": (StepPlan(DRAFT_LENGTH), {"options": RequestOptions(num_speculative_tokens=1)}, 1),
    "a request without drafts": (StepPlan(DRAFT_LENGTH), {"options": RequestOptions(num_speculative_tokens=0)}, 0),
    "a step without drafts": (StepPlan(0), {}, 0),
    "the request's end": (StepPlan(DRAFT_LENGTH), {"max_tokens": 3}, 1),
    "the budget": (StepPlan(DRAFT_LENGTH, 1), {}, 1),
}


@pytest.mark.parametrize("step", [None, fails, is_busy], ids=["drafts", "fails", "busy"])
@pytest.mark.parametrize("limit", LIMITS)
def test_limits_hold_for_the_engines_tokens(limit, step):
    plan, of_request, most = LIMITS[limit]
    engine = started(UNMATCHED, **of_request)
    engine.steps._step = engine.steps._step if step is None else HostStep(step.address, 0)
    assert engine.draft(0, [1, 2], plan) == ([1][:most], most)


def test_a_step_that_is_not_launched_states_nothing_of_the_engine():
    engine, stream = Extended(), Refusing()
    engine.stream_by(stream=stream)
    engine.start("a", 1, PROMPT)
    stream.refuses = True
    assert engine.draft(1, WRONG) == ([], 0)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.integers(1, 14), st.integers(0, 1000))
def test_late_steps_equal_those_at_once(random: Random, count, seed):
    with FakeStream(seed) as stream:
        engines = [Extended(), Extended(stream=stream)]
        ids = torch.tensor([[random.randrange(VOCAB) for _ in WRONG] for _ in range(SLOTS)])
        for engine in engines:
            engine.engine_ids[:] = ids
        assert compare(random, engines, steps=count)[1] == []
