"""Lookup after SGLang's own draft models, a draft model and EAGLE heads, with another draft length at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.engines import toy
from tests.engines.plain import assert_greedy, greedy, ids
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.drafters import ROWS, answers, drafted, drafts_by_text, judge_long_answers, status
from tests.engines.sglang.engines import Engine

ALGORITHMS = ["EAGLE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("STANDALONE", "EAGLE3"))]
MODEL_TOKENS, LENGTH = 2, 8
ENGINE, AT = "ngram/engine", ("verified_at", "accepted_at")
EXTENDED = {
    "proposer": "hybrid",
    "policy": "ladder",
    "options": {
        "hybrid": {"model": "engine", "model_tokens": MODEL_TOKENS},
        "ladder": {"draft_lengths": [8, 8, 0, 4, 1, 8, 2]},
        "ngram": {"min_n": 1, "memory_tokens": 0},
    },
}
"""Settings under which lookup may continue the two tokens of the drafter, and most steps have another length."""


@pytest.fixture
def make(engine: Callable[..., Engine], draft_of: Callable[[str], Path]) -> Callable[..., Engine]:
    """Make an engine: ``make("EAGLE", EXTENDED)``."""

    def made(algorithm: str, settings: dict[str, Any] | None = EXTENDED, **others: Any) -> Engine:
        own = {"draft_length": LENGTH, "speculative_num_steps": None} if settings else {}
        return drafted(engine, algorithm, draft_of(algorithm), settings, **own, **others)

    return made


def counts(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the counts of the drafter's tokens, under "engine", and of all that lookup drafted, under "lookup"."""
    (worker,) = engine.call(status)["workers"]
    sources = worker["metrics"]["by_source"]
    own = [found for name, found in sources.items() if name.startswith("ngram") and name != ENGINE]
    lookup = {name: sum(found[name] for found in own) for name in ("accepted", "verified")}
    lookup |= {name: [sum(column) for column in zip(*(found[name] for found in own), strict=True)] for name in AT}
    return {"engine": sources[ENGINE], "lookup": lookup}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_greedy_text_is_the_targets(algorithm, make):
    engine = make(algorithm)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(engine))
    found = counts(engine)
    engine_at, lookup_at = (found[name]["verified_at"] for name in ("engine", "lookup"))
    assert min(engine_at[:MODEL_TOKENS]) > 0
    assert sum(engine_at[MODEL_TOKENS:]) == 0
    assert min(lookup_at) > 0
    assert found["lookup"]["accepted"] > 0


# -- the drafter's key-value cache ------------------------------------------------------------------------------------

DRAFTED: list[list[Any]] = []


def plant_tails(scheduler: Any, texts: list[list[int]]) -> None:
    """Verify drafts of random lengths of which random numbers are right; record what SGLang's drafter drafted.

    `texts` are the prompts with the target's continuations, by request.
    """
    worker, random = scheduler.draft_worker, Random(5)
    continued = worker.continued

    def planted(engine_ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, _ = continued(engine_ids, length)
        step, lengths = worker._decoding, []
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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_drafter_drafts_as_if_there_were_no_tails(algorithm, make):
    """Whatever was verified and accepted after its tokens: its cache has all of it."""
    engine, texts = make(algorithm), [[*row, *greedy(row)["token_ids"]] for row in ROWS]
    assert engine.call(inside.flush)  # SGLang caches a drafter's prefix with the token after it, of whatever request
    with engine.planted(plant_tails, texts=texts):
        found = answers(engine, rid=[str(row) for row in range(len(ROWS))])
    assert_greedy(ROWS, [greedy(row) for row in ROWS], found)
    expected = drafts_by_text(make(algorithm, None))
    actual = {(rid, length): ids for rid, length, ids in engine.inside(drafted_by_engine)}
    assert {len(ids) for ids in actual.values()} == {1, MODEL_TOKENS}
    common = actual.keys() & expected.keys()
    assert len(common) > 10
    assert all(actual[text] == expected[text][: len(actual[text])] for text in common)


# -- how requests run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["EAGLE"])
def test_references_are_drafted_from_after_the_drafters_tokens(algorithm, make):
    """Each request's reference is its own answer."""
    engine = make(algorithm)
    known = [{"custom_params": {"specplug": {"references": [{"token_ids": greedy(row)["token_ids"]}]}}} for row in ROWS]
    before = counts(engine)["lookup"]
    without = answers(engine)
    between = counts(engine)["lookup"]
    found = answers(engine, known)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], found)
    steps = [sum(answer["meta"]["spec_verify_ct"] for answer in each) for each in (without, found)]
    assert steps[1] < 0.8 * steps[0]
    accepted = [each["accepted"] for each in (before, between, counts(engine)["lookup"])]
    assert accepted[2] - accepted[1] > accepted[1] - accepted[0]


@pytest.mark.parametrize("algorithm", ["EAGLE"])
def test_requests_limits_are_kept_in_one_batch(algorithm, make):
    fields = [{}, {"specplug_num_speculative_tokens": 1}, {"specplug_enabled": False}]
    params = [{"custom_params": dict(fields[row % 3])} for row in range(8)]
    given = [ROWS[row // 3] for row in range(8)]
    engine = make(algorithm)
    found = answers(engine, params, given)
    assert_greedy(given, [greedy(row) for row in given], found)
    emitted = [answer["meta"]["completion_tokens"] - 1 for answer in found]  # the first token is the prefill's
    a_step = [tokens / answer["meta"]["spec_verify_ct"] for tokens, answer in zip(emitted, found, strict=True)]
    assert max(a_step[0::3]) > 2
    assert all(tokens <= 2 for tokens in a_step[1::3])
    assert set(a_step[2::3]) == {1}


@pytest.mark.parametrize("algorithm", ["EAGLE"])
def test_penalties_and_grammars_are_exact(algorithm, make, baseline):
    engine = make(algorithm)
    params = [{"frequency_penalty": 0.5}, {"min_new_tokens": 40}, {"regex": "[a-f]{3}( [a-f]{3}){4}"}, {}] * 2
    given = [tuple(ids(text)) for text in ("The capital of France is", "def f(x):")] * 4
    found, expected = (answers(each, params, given) for each in (engine, baseline))
    assert [answer["token_ids"] for answer in found] == [answer["token_ids"] for answer in expected]


@pytest.mark.parametrize("algorithm", ["EAGLE"])
def test_requests_that_are_retracted_are_drafted_for_again(algorithm, make):
    engine = make(algorithm)
    with engine.planted(watching.retract_often, every=5):
        found = judge_long_answers(engine)
    assert sum(answer["meta"]["num_retractions"] for answer in found) > 3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_steps_that_do_not_overlap_and_prompts_in_chunks(algorithm, make):
    judge_long_answers(make(algorithm, overlap=False, chunked_prefill_size=64))


@pytest.mark.parametrize("algorithm", ["EAGLE"])
def test_where_lookup_cannot_run_the_drafters_tokens_stand(algorithm, make):
    engine = make(algorithm)
    before = counts(engine)
    with engine.planted(fail_to_draft):
        found = answers(engine)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], found)
    assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in found) > 0
    assert counts(engine)["lookup"] == before["lookup"]


def fail_to_draft(scheduler: Any) -> None:
    """Let no step of lookup be launched."""
    trees.put(scheduler.draft_worker.drafting.drafts, "propose", lambda *_: None)


# -- sampled text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["STANDALONE"])
def test_sampled_text_has_the_targets_distribution(algorithm, engine, tmp_path_factory):
    """With limits in some rows; the model drafts for itself.  A mistake in verification is found."""
    path = tmp_path_factory.mktemp("toy")
    toy.model().save_pretrained(path)
    target = {"model_path": str(path), "skip_tokenizer_init": True, "context_length": 64, "max_running_requests": 64}
    own = {"draft_length": LENGTH, "speculative_num_steps": None, "sampling": True}
    sampled = drafted(engine, algorithm, path, EXTENDED, **target, **own)
    plain = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}
    params = [{**plain, "custom_params": {"specplug_num_speculative_tokens": 1 + row % 8}} for row in range(128)]
    found = answers(sampled, params, [toy.PROMPT] * len(params))
    assert toy.p_value([answer["token_ids"] for answer in found]) > 1e-4
    by_source = counts(sampled)
    assert min(by_source[name]["accepted"] for name in ("engine", "lookup")) > 100
    assert sum(by_source["lookup"]["accepted_at"][MODEL_TOKENS:]) > 10
    with sampled.planted(trees.accept_lightly):
        found = answers(sampled, params, [toy.PROMPT] * len(params))
    assert toy.p_value([answer["token_ids"] for answer in found]) < 1e-6
