"""Two tensor-parallel ranks: they hold the same drafts, whatever happens on one of them, and the text is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm.referee import assert_greedy, prompts

PROMPTS = [list(prompt) for prompt in prompts()[:8]]
PARAMS = {"max_tokens": 16}
BY_REFERENCE = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # functions travel to the workers by name
SETTINGS = {
    "proposer": "raises-device",
    "extra_proposers": ["raises"],
    "policy": "fixed",
    "options": {"raises-device": {"rank": 1}, "raises": {"rank": 0, "every": 3}},
    "faults": {"max_consecutive": 1000},
}
RAISES_ON_RANK_0 = {"extra_args": {"specplug": {"proposer": "raises"}}}


@pytest.fixture(scope="module")
def two_ranks(engine: Callable[..., Engine]) -> Callable[..., Engine]:
    def make(runner: str) -> Engine:
        return engine(
            runner,
            SETTINGS,
            draft_length=4,
            in_process=False,
            tensor_parallel_size=2,
            environment=BY_REFERENCE,
            name=f"two ranks {runner}",
        )

    return make


@pytest.fixture(scope="module")
def truth(baseline_v1: Engine) -> list[dict[str, Any]]:
    """The answers of one rank without speculation."""
    return baseline_v1.call("inside.generate", prompts=PROMPTS, params=PARAMS)


def accepted(found: dict[str, Any]) -> int:
    return found["status"][0]["metrics"]["total"]["accepted"]


@pytest.mark.slow  # the ranks of V2, which is vLLM's default, are in `make test`
def test_v1_drafts_on_rank_0_alone_and_the_text_is_right(two_ranks, truth):
    found = two_ranks("v1").call("ranks.generate_and_hold", prompts=PROMPTS, params=PARAMS)
    assert_greedy(PROMPTS, truth, found["answers"])
    assert [rank["leads"] for rank in found["held"]] == [True, False]
    assert [status["drafts"] for status in found["status"]] == [True, False]
    assert accepted(found) > 0
    assert "raises-device" not in found["status"][0]["metrics"]["faults"], "it ran as rank 1"


@pytest.fixture(scope="module")
def v2_ranks(two_ranks: Callable[..., Engine]) -> Engine:
    return two_ranks("v2")


@pytest.mark.slow  # two ranks in Triton's interpreter
def test_v2_ranks_hold_the_same_drafts_and_the_text_is_right(v2_ranks, truth):
    found = v2_ranks.call("ranks.generate_and_hold", prompts=PROMPTS, params=PARAMS)
    assert_greedy(PROMPTS, truth, found["answers"])
    first, second = found["held"]
    assert (first["leads"], second["leads"]) == (True, False)
    assert first["drafts"] == second["drafts"]
    assert any(map(any, first["drafts"])), "nobody drafted"
    assert accepted(found) > 0
    assert "raises-device" not in found["status"][0]["metrics"]["faults"], "it ran as rank 1"


@pytest.mark.slow  # that the slow one above can fail
def test_v2_drafts_that_differ_by_rank_would_be_seen(v2_ranks, truth):
    """The check above can fail: with drafts of its own on rank 1 the ranks differ, and so does the text."""
    found = v2_ranks.call("ranks.generate_and_hold", prompts=PROMPTS, params=PARAMS, apart=True)
    first, second = found["held"]
    assert first["drafts"] != second["drafts"]
    with pytest.raises(AssertionError):
        assert_greedy(PROMPTS, truth, found["answers"])


def test_v2_a_proposer_that_raises_on_rank_0_costs_drafts_on_both(v2_ranks, truth):
    params = {**PARAMS, **RAISES_ON_RANK_0}
    found = v2_ranks.call("ranks.generate_and_hold", prompts=PROMPTS, params=params)
    assert_greedy(PROMPTS, truth, found["answers"])
    first, second = found["held"]
    assert first["drafts"] == second["drafts"]
    assert found["status"][0]["metrics"]["faults"]["raises"]["raised"] > 0
    assert accepted(found) > 0
