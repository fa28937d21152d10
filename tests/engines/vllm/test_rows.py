"""What vLLM's rejection samplers do otherwise than its samplers: rows behind whole drafts, and what they leave out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.plain import ids
from tests.engines.suites.served import drafts_of
from tests.engines.vllm import inside
from tests.engines.vllm.test_engine_drafts import LOOKUP, ladder

__all__ = ["ladder"]

CAT = ids("<|edit|>the cat sat on the mat and the cat sat on the mat and the cat sat on the")
STOP = 546
MINIMUMS = [{"min_tokens": least, "stop_token_ids": [STOP], "max_tokens": 16} for least in (1, 3, 5, 8, 9, 12)]

GIVEN = [
    {"logprob_token_ids": [5, 7, 281], "max_tokens": 12},
    {"logprob_token_ids": [9, STOP, 295, 291, 300], "max_tokens": 9},
    {"logprob_token_ids": [281, 282], "max_tokens": 1},
    {"max_tokens": 10},
]
LIKELIEST = {"logprobs": 2, "max_tokens": 10}
ON_V1 = pytest.mark.parametrize("kind", ["v1"], indirect=True)


def answers(engine, params: list[dict[str, Any]], prompt: list[int] = CAT) -> list[dict[str, Any]]:
    return engine.call("inside.generate", prompts=[prompt] * len(params), params=params)


def wrong_in_the_middle(text: list[int]) -> dict[str, Any]:
    return drafts_of([*text[:3], 5, *text[4:]])


def test_stop_ids_count_from_the_minimum_on(kind, baseline, zoo):
    """The drafts end at each place in turn: V1 draws the stop id from the row behind them."""
    expected = answers(baseline, MINIMUMS)
    lengths = [len(answer["token_ids"]) for answer in expected]
    assert (lengths[0], lengths[-1]) == (9, 16)
    for cut in range(2, 10):
        drafts = [drafts_of(answer["token_ids"][:cut]) for answer in expected]
        drafted = [{**own, **draft} for own, draft in zip(MINIMUMS, drafts, strict=True)]
        assert answers(zoo, drafted) == expected


@ON_V1
def test_stop_ids_count_from_the_minimum_on_with_vllms_own_drafts(kind, baseline, ladder):
    expected = answers(baseline, MINIMUMS)
    own = ladder(kind, {"method": "ngram", **LOOKUP}, caps=(None, 2))
    for _ in range(3):  # its plan has other lengths each time
        assert answers(own, MINIMUMS) == expected


def assert_same_logprobs(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    for alone, beside in zip(expected, found, strict=True):
        assert beside["token_ids"] == alone["token_ids"]
        assert len(beside.get("logprobs", ())) == len(alone.get("logprobs", ()))
        for own, other in zip(alone.get("logprobs", ()), beside.get("logprobs", ()), strict=True):
            assert other == pytest.approx(own, abs=1e-3)


@pytest.mark.parametrize("draft", [lambda text: {}, drafts_of, wrong_in_the_middle])
def test_log_probabilities_of_given_tokens(kind, baseline, zoo, draft):
    """Each request gets beside others what it gets alone; V1's likeliest tokens beside are in `test_workarounds`."""
    params = GIVEN if kind == "v1" else [*GIVEN, LIKELIEST]
    alone = [answers(baseline, [own])[0] for own in params]
    drafted = [{**own, **draft(answer["token_ids"])} for own, answer in zip(params, alone, strict=True)]
    assert_same_logprobs(alone, answers(zoo, drafted))
    assert_same_logprobs(alone[:1], answers(zoo, drafted[:1]))


def generate_in_parts(llm: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Generate as `inside.generate`, while V2 verifies up to ten rows of logits at once."""
    import vllm.v1.worker.gpu.spec_decode.rejection_sampler as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "get_max_chunk_logits", lambda vocab_size: 10)
        return inside.generate(llm, prompts, params)


@pytest.mark.parametrize("kind", ["v2_async"], indirect=True)
def test_log_probabilities_of_given_tokens_in_a_batch_that_is_verified_in_parts(kind, baseline, zoo):
    """vLLM verifies a large batch in parts, of which none may have other columns, or none, than the others."""
    params = [{"max_tokens": 10}, *GIVEN]
    alone = [answers(baseline, [own])[0] for own in params]
    drafted = [{**own, **drafts_of(answer["token_ids"])} for own, answer in zip(params, alone, strict=True)]
    assert_same_logprobs(alone, zoo.call(generate_in_parts, prompts=[CAT] * len(drafted), params=drafted))


@ON_V1
def test_log_probabilities_of_given_tokens_with_vllms_own_drafts(kind, baseline, ladder):
    own = ladder(kind, {"method": "ngram", **LOOKUP}, caps=(None, 2))
    assert_same_logprobs([answers(baseline, [one])[0] for one in GIVEN], answers(own, GIVEN))


@ON_V1
def test_a_seeds_text_does_not_depend_on_the_prefix_cache(kind, baseline, zoo):
    """vLLM gives a request whose prompt is cached to its last token a first step with placeholders for drafts."""
    params = [{"temperature": 2.0, "seed": 7, "max_tokens": 12, "ignore_eos": True}]
    prompt = (CAT * 5)[:129]  # one block, and a token
    expected = answers(baseline, params, prompt)
    assert [answers(zoo, params, prompt) for _ in range(2)] == [expected] * 2
