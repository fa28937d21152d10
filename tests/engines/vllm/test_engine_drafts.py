"""vLLM's own drafters under specplug's plans: lengths, caps, text as without speculation, and caches that stay in step.

The draft model of these tests is the target itself, so every draft token is accepted as long as the draft model's
key-value cache holds every token.
"""

from __future__ import annotations

import pytest

from tests.engines.launch import TINY
from tests.engines.vllm import inside, steps
from tests.engines.vllm.referee import RUNNERS, kind
from tests.engines.vllm.steps import assert_as_baseline
from tests.engines.vllm.test_draft_lengths import requests

__all__ = ["kind"]

DRAFT_LENGTHS = (0, 1, 3, 5, 0, 0, 2)
LADDER = {"policy": "ladder", "options": {"ladder": {"draft_lengths": DRAFT_LENGTHS}}}
DRAFT_MODEL = {"method": "draft_model", "model": str(TINY), "num_speculative_tokens": 5}


@pytest.fixture
def baseline(baseline_v1, baseline_v2, kind):
    return baseline_v1 if kind == "v1" else baseline_v2


@pytest.fixture
def draft_model(engine, kind):
    return engine(**RUNNERS[kind], specplug=LADDER, speculative_config=DRAFT_MODEL, name="draft_model")


def test_a_draft_model_keeps_its_cache_in_step_at_every_draft_length(draft_model, baseline):
    run = draft_model.call(recorded_and_counted, requests=requests(3))
    assert_as_baseline(baseline, run, requests(3))
    planned = [step["requested"] for step in run["record"]]
    turns = DRAFT_LENGTHS * len(planned)
    assert any(tuple(planned) == turns[i : i + len(planned)] for i in range(len(DRAFT_LENGTHS)))
    drafted = run["counts"]["draft_model"]
    assert drafted["verified"] > 50
    assert drafted["accepted"] == drafted["verified"]
    seen = sum(len(output["token_ids"]) for output in run["outputs"].values())
    emitted = drafted["emitted"] + run["counts"]["none"]["emitted"]
    assert seen <= emitted <= seen + 5 * len(run["outputs"])  # some after a stop


def recorded_and_counted(llm, requests):
    """Do as `steps.recorded`, and return the scheduler's counts of these requests by source under "counts"."""
    scheduler = inside.scheduler(llm)
    before = scheduler.counts.snapshot({})
    run = steps.recorded(llm, requests)
    return {**run, "counts": (scheduler.counts.snapshot({}) - before).as_dict()["by_source"]}
