"""SGLang's own draft models, a draft model and EAGLE heads, with another draft length at each step.

specplug plans their drafts, or its lookup continues them.  Features stand in rows for both; drafts are compared, text
by text, with those of SGLang alone, whose draft length never changes.  For sampled text see `test_sampling`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from specplug.types.step import StepPlan
from tests.engines.plain import assert_greedy, greedy, ids
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.drafters import (
    CHANGING,
    EXTENDED,
    LENGTH,
    MODEL_TOKENS,
    ROWS,
    answers,
    counts,
    drafted,
    drafts_by_text,
    extended_counts,
    judge_long_answers,
    status,
)
from tests.engines.sglang.engines import Engine

SETTINGS = {"planned": CHANGING, "extended": EXTENDED}
SLOW = pytest.mark.slow
ALGORITHMS = ["EAGLE", *(pytest.param(name, marks=SLOW) for name in ("STANDALONE", "EAGLE3"))]
kinds = pytest.mark.parametrize("kind", SETTINGS)
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture
def make(engine: Callable[..., Engine], draft_of: Callable[[str], Path]) -> Callable[..., Engine]:
    """Make an engine: ``make("planned", "EAGLE")``; "alone" is without specplug."""

    def made(kind: str, algorithm: str, **others: Any) -> Engine:
        return drafted(engine, algorithm, draft_of(algorithm), SETTINGS.get(kind), **others)

    return made


def assert_right(found: list[Any], rows: Sequence[Any] = ROWS) -> None:
    assert_greedy(rows, [greedy(row) for row in rows], found)


@kinds
@algorithms
def test_greedy_text_is_the_targets(kind, algorithm, make):
    engine = make(kind, algorithm)
    assert_right(answers(engine))
    if kind == "extended":
        found = extended_counts(engine)
        engine_at, lookup_at = (found[name]["verified_at"] for name in ("engine", "lookup"))
        assert min(engine_at[:MODEL_TOKENS]) > 0
        assert sum(engine_at[MODEL_TOKENS:]) == 0
        assert min(lookup_at) > 0
        assert found["lookup"]["accepted"] > 0


# -- the drafter's key-value cache ------------------------------------------------------------------------------------


@algorithms
def test_drafts_are_as_if_lengths_never_changed(algorithm, make):
    expected, actual = (drafts_by_text(make(kind, algorithm)) for kind in ("alone", "planned"))
    assert {len(draft) for draft in expected.values()} == {LENGTH}
    assert {len(draft) for draft in actual.values()} == {0, 1, 2, LENGTH}
    common = [text for text in actual.keys() & expected.keys() if actual[text]]
    assert len(common) > 30
    assert all(actual[text] == expected[text][: len(actual[text])] for text in common)


DRAFTED: list[list[Any]] = []


def plant_tails(scheduler: Any, texts: list[list[int]]) -> None:
    """Verify drafts of random lengths of which random numbers are right; record what SGLang's drafter drafted.

    `texts` are the prompts with the target's continuations, by request.
    """
    worker = scheduler.draft_worker
    random = Random(5)
    continued = worker.continued

    def planted(engine_ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, _ = continued(engine_ids, length)
        step = worker._decoding
        lengths = []
        worker._draft = None  # lookup has seen no drafts
        for row, (req, before) in enumerate(zip(step.reqs, step.before.tolist(), strict=True)):
            DRAFTED.append([req.rid, before, engine_ids[row].tolist()])
            following = texts[int(req.rid)][before + 1 :]
            right = min(random.randint(0, length), len(following))
            lengths.append(random.randint(right, length))
            ids[row, :right] = torch.tensor(following[:right], dtype=torch.int64)
            ids[row, right:] = 7
        return ids, torch.tensor(lengths)

    DRAFTED.clear()
    trees.put(worker, "continued", planted)


def drafted_by_engine(scheduler: Any) -> list[list[Any]]:
    return DRAFTED


@algorithms
def test_the_drafter_drafts_as_if_there_were_no_tails(algorithm, make):
    """Whatever was verified and accepted after its tokens: its cache has all of it."""
    engine = make("extended", algorithm)
    texts = [[*row, *greedy(row)["token_ids"]] for row in ROWS]
    assert engine.call(inside.flush)  # SGLang caches a drafter's prefix with the token after it, of whatever request
    with engine.planted(plant_tails, texts=texts):
        found = answers(engine, rid=[str(row) for row in range(len(ROWS))])
    assert_right(found)
    expected = drafts_by_text(make("alone", algorithm))
    actual = {(rid, length): ids for rid, length, ids in engine.inside(drafted_by_engine)}
    assert {len(ids) for ids in actual.values()} == {1, MODEL_TOKENS}
    common = actual.keys() & expected.keys()
    assert len(common) > 10
    assert all(actual[text] == expected[text][: len(actual[text])] for text in common)


# -- features ---------------------------------------------------------------------------------------------------------


@kinds
def test_requests_limits_are_kept_in_one_batch(kind, make):
    """All rows have one length; of a limited row's draft no more than its limit is accepted."""
    fields = [{}, {"specplug_num_speculative_tokens": 1}, {"specplug_enabled": False}]
    params = [{"custom_params": dict(fields[row % 3])} for row in range(8)]
    given = [ROWS[row // 3] for row in range(8)]
    found = answers(make(kind, "STANDALONE" if kind == "planned" else "EAGLE"), params, given)
    assert_right(found, given)
    emitted = [answer["meta"]["completion_tokens"] - 1 for answer in found]  # the first token is the prefill's
    a_step = [tokens / answer["meta"]["spec_verify_ct"] for tokens, answer in zip(emitted, found, strict=True)]
    assert max(a_step[0::3]) > 2
    assert all(1 < tokens <= 2 or (kind == "extended" and tokens == 1) for tokens in a_step[1::3])
    assert set(a_step[2::3]) == {1}


@kinds
def test_penalties_and_grammars_are_exact(kind, make, baseline):
    """SGLang alone counts a step as one token for penalties, however many it accepted."""
    params = [{"frequency_penalty": 0.5}, {"presence_penalty": 0.9}, {"min_new_tokens": 40}, {}] * 2
    params += [{"regex": "[a-f]{3}( [a-f]{3}){4}", "max_new_tokens": 40}] * 2
    given = [tuple(ids(text)) for text in ("The capital of France is", "def f(x):")] * 5
    engine = make(kind, "STANDALONE" if kind == "planned" else "EAGLE")
    before = cut_by_grammars(engine)
    found, expected = (answers(each, params, given) for each in (engine, baseline))
    assert [answer["token_ids"] for answer in found] == [answer["token_ids"] for answer in expected]
    assert cut_by_grammars(engine) == before, "overlapped, grammars lack the step before when drafts are made"


def cut_by_grammars(engine):
    workers = engine.call(status)["workers"]
    return [worker["metrics"]["total"]["cut_by_grammar"] for worker in workers if worker.get("metrics")]


@kinds
def test_requests_that_are_retracted_are_drafted_for_again(kind, make):
    engine = make(kind, "EAGLE")
    with engine.planted(watching.retract_often, every=5):
        found = judge_long_answers(engine)
    assert sum(answer["meta"]["num_retractions"] for answer in found) > 3


@SLOW
@pytest.mark.parametrize(
    ("kind", "algorithm"), [("planned", "EAGLE"), ("extended", "EAGLE"), ("extended", "STANDALONE")]
)
def test_steps_that_do_not_overlap_and_prompts_in_chunks(kind, algorithm, make):
    judge_long_answers(make(kind, algorithm, overlap=False, chunked_prefill_size=64))


def test_references_are_drafted_from_after_the_drafters_tokens(make):
    """Each request's reference is its own answer."""
    engine = make("extended", "EAGLE")
    known = [{"custom_params": {"specplug": {"references": [{"token_ids": greedy(row)["token_ids"]}]}}} for row in ROWS]
    before = extended_counts(engine)["lookup"]
    without = answers(engine)
    between = extended_counts(engine)["lookup"]
    found = answers(engine, known)
    assert_right(found)
    steps = [sum(answer["meta"]["spec_verify_ct"] for answer in each) for each in (without, found)]
    assert steps[1] < 0.8 * steps[0]
    accepted = [each["accepted"] for each in (before, between, extended_counts(engine)["lookup"])]
    assert accepted[2] - accepted[1] > accepted[1] - accepted[0]


def fail_to_draft(scheduler: Any) -> None:
    """Let no step of lookup be launched."""
    trees.put(scheduler.draft_worker.drafting.drafts, "propose", lambda *_: None)


def test_where_lookup_cannot_run_the_drafters_tokens_stand(make):
    engine = make("extended", "EAGLE")
    before = extended_counts(engine)
    with engine.planted(fail_to_draft):
        found = answers(engine)
    assert_right(found)
    assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in found) > 0
    assert extended_counts(engine)["lookup"] == before["lookup"]


def plan_otherwise(scheduler: Any) -> None:
    """Let ranks other than 0 plan another length."""
    drafting = scheduler.draft_worker.drafting
    if drafting.rank:
        trees.put(drafting.step_planner, "make", lambda reqs, **figures: StepPlan(3))
        logging.getLogger("sglang").info("rank %s plans otherwise", drafting.rank)


@SLOW
def test_all_ranks_take_rank_0s_lengths(make):
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    engine = make("planned", "STANDALONE", tp_size=2, environment=environment)
    engine.inside(plan_otherwise)
    assert_right(answers(engine))
    assert "rank 1 plans otherwise" in engine.log()
    verified = counts(engine)["standalone"]["verified_at"]
    assert verified[0] > verified[1] > verified[2] >= verified[3] > 0.9 * verified[2], "ends alone cut drafts to 3"
