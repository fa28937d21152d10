"""SGLang's own draft models with another draft length at each step: a draft model and EAGLE heads.

Their drafts are compared, text by text, with those of SGLang alone, whose draft length never changes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specplug.types.step import StepPlan
from tests.engines import toy
from tests.engines.plain import assert_greedy, greedy
from tests.engines.sglang import trees, watching
from tests.engines.sglang.drafters import (
    CHANGING,
    LENGTH,
    ROWS,
    answers,
    counts,
    drafted,
    drafts_by_text,
    judge_long_answers,
)
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_sampling import lossy, saved, small
from tests.engines.sglang.test_seeds import WHOLE, deterministically, seeded

__all__ = ["saved", "small"]

ALGORITHMS = ["EAGLE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("STANDALONE", "EAGLE3"))]


@pytest.fixture
def make(engine: Callable[..., Engine], draft_of: Callable[[str], Path]) -> Callable[..., Engine]:
    """Make an engine: ``make("EAGLE", CHANGING)``."""

    def made(algorithm: str, settings: dict[str, Any] | None = None, **others: Any) -> Engine:
        return drafted(engine, algorithm, draft_of(algorithm), settings, **others)

    return made


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_greedy_text_is_the_targets(algorithm, make):
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(make(algorithm, CHANGING)))


# -- drafts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_drafts_are_as_if_lengths_never_changed(algorithm, make):
    expected, actual = (drafts_by_text(make(algorithm, settings)) for settings in (None, CHANGING))
    assert {len(draft) for draft in expected.values()} == {LENGTH}
    assert {len(draft) for draft in actual.values()} == {0, 1, 2, LENGTH}
    common = [text for text in actual.keys() & expected.keys() if actual[text]]
    assert len(common) > 30
    assert all(actual[text] == expected[text][: len(actual[text])] for text in common)


# -- how requests run -------------------------------------------------------------------------------------------------


def test_requests_that_are_retracted_are_drafted_for_again(make):
    engine = make("EAGLE", CHANGING)
    with engine.planted(watching.retract_often, every=5):
        found = judge_long_answers(engine)
    assert sum(answer["meta"]["num_retractions"] for answer in found) > 3


@pytest.mark.slow
def test_steps_that_do_not_overlap_and_prompts_in_chunks(make):
    judge_long_answers(make("EAGLE", CHANGING, overlap=False, chunked_prefill_size=64))


def plan_otherwise(scheduler: Any) -> None:
    """Let ranks other than 0 plan another length."""
    drafting = scheduler.draft_worker.drafting
    if drafting.rank:
        trees.put(drafting.step_planner, "make", lambda reqs, **figures: StepPlan(3))
        logging.getLogger("sglang").info("rank %s plans otherwise", drafting.rank)


@pytest.mark.slow
def test_all_ranks_take_rank_0s_lengths(make):
    environment = {"SPECPLUG_CONFIG": json.dumps(CHANGING), "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    engine = make("STANDALONE", CHANGING, tp_size=2, environment=environment)
    engine.inside(plan_otherwise)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(engine))
    assert "rank 1 plans otherwise" in engine.log()
    verified = counts(engine)["standalone"]["verified_at"]
    assert verified[0] > verified[1] > verified[2] >= verified[3] > 0.9 * verified[2], "ends alone cut drafts to 3"


@pytest.fixture(scope="session")
def sampled(engine: Callable[..., Engine], saved: str) -> Engine:
    """The toy model, which drafts for itself."""
    target = {"model_path": saved, "skip_tokenizer_init": True, "context_length": 64, "max_running_requests": 64}
    return drafted(engine, "STANDALONE", Path(saved), CHANGING, **target, sampling=True)


def at_limits(params: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return sampling parameters with limits of their own."""
    return [
        {**own, "custom_params": {"specplug_num_speculative_tokens": 1 + row % 4}} for row, own in enumerate(params)
    ]


def test_sampled_text_has_the_targets_distribution(sampled):
    """With limits in most rows; also where SGLang's verification takes the likeliest token."""
    params = at_limits([{"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}] * 128)
    for plants in ((), (trees.verify_as_without_kernels,)):
        with sampled.planted(*plants):
            found = answers(sampled, params, [toy.PROMPT] * len(params))
        assert toy.p_value([answer["token_ids"] for answer in found]) > 1e-4, plants
        assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in found) > 200

    try:
        sampled.inside(lossy, thresholds={"speculative_accept_threshold_single": 0.1})
        found = answers(sampled, params, [toy.PROMPT] * len(params))
        status = sampled.inside(lossy, thresholds={})
    finally:
        sampled.inside(lossy, thresholds={"speculative_accept_threshold_single": 1.0})
    assert toy.p_value([answer["token_ids"] for answer in found]) < 1e-6
    assert status["lossy"] == "--speculative-accept-threshold-single 0.1"
    counted = status["scheduler"]["metrics"]["lossy"]
    assert counted["accepted"] >= sum(answer["meta"]["spec_num_correct_drafts"] for answer in found)
    assert 0.1 < counted["departure_rate"] < 0.9


def test_a_seed_has_one_text(sampled, small):
    """SGLang's own without speculation, whatever the draft lengths."""
    params = seeded(WHOLE, 6)
    (expected, _), (found, accepted) = (
        deterministically(each, own) for each, own in ((small(), params), (sampled, at_limits(params)))
    )
    assert found == expected
    assert accepted > 20
