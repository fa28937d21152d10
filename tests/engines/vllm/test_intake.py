"""specplug's request fields are checked before the engine receives them, and V2 serves min_p and logit_bias.

What comes over HTTP is tested in `test_server`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.engines.plain import greedy, ids, prompts
from tests.engines.suites.served import drafts_of
from tests.engines.vllm import inside

MAX_TOKENS = 24


# Inside the engine's process.


def arrival(llm: Any, extra_args: dict[str, Any], **sampling: Any) -> list[dict[str, Any]]:
    """Admit a request, and return what the scheduler's copies of it carry, one per child."""
    from specplug.requests import wire

    before = repr(extra_args)
    params = inside.sampling({**sampling, "extra_args": extra_args})
    llm.llm_engine.add_request("arrival", {"prompt_token_ids": [5, 6, 7]}, params)
    found = []
    for request in list(inside.scheduler(llm).requests.values()):
        carried = request.sampling_params.extra_args
        options, references, tenant = wire.decode(carried)
        named = {reference.name: reference.token_ids.tolist() for reference in references}
        found.append({**asdict(options), "references": named, "tenant": tenant, "keys": sorted(carried)})
    llm.llm_engine.abort_request(["arrival"])
    while llm.llm_engine.has_unfinished_requests() or inside.scheduler(llm).requests:
        llm.llm_engine.step()
    assert params.extra_args is extra_args
    assert repr(extra_args) == before, "the caller's parameters have changed"
    return found


def refusal(llm: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return how a request is refused, and whether the engine received it."""
    from vllm.exceptions import VLLMClientError

    try:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], inside.sampling(params), use_tqdm=False)
    except Exception as error:
        kinds = [kind.__name__ for kind in (ValueError, VLLMClientError) if isinstance(error, kind)]
        return {"text": str(error), "kinds": kinds, "seen": len(inside.scheduler(llm).requests)}
    return {"text": None}


# On V1.

on_v1 = pytest.mark.parametrize("kind", ["v1"], indirect=True)


@on_v1
def test_fields_arrive_parsed_with_every_child(zoo):
    """Their forms are tested without an engine, in tests/requests/test_parsing.py."""
    given = {
        "specplug": {"references": [{"token_ids": [5, 6], "name": "x"}], "store": False, "tenant": "a"},
        "specplug_prediction": "area",
        "specplug_num_speculative_tokens": 200,
        "specplug_documents": json.dumps([{"name": "a.txt", "corpus": "notes"}, "b.txt"]),
        "other": 1,
    }
    found = zoo.call(arrival, extra_args=given, n=2, temperature=1.0)
    expected = {
        **{"enabled": True, "store": False, "num_speculative_tokens": 8, "tenant": "a", "keys": ["other", "specplug"]},
        **{"references": {"prediction": ids("area"), "x": [5, 6]}, "documents": [["a.txt", "notes"], ["b.txt", None]]},
    }
    assert [{name: child[name] for name in expected} for child in found] == [expected] * 2


@on_v1
def test_mistakes_are_value_errors_and_never_reach_the_engine(zoo):
    answer = zoo.call(refusal, params={"extra_args": {"specplug_refrences": "a"}})
    assert "Did you mean 'specplug_references'?" in answer["text"]
    assert answer["kinds"] == ["ValueError", "VLLMClientError"]  # vLLM's server answers the latter with a 400
    assert answer["seen"] == 0


# On V2.

on_v2 = pytest.mark.parametrize("kind", ["v2"], indirect=True)

GIVEN = [list(prompt) for prompt in prompts()[:4]]


def drafted(answers: Sequence[dict[str, Any]], **params: Any) -> list[dict[str, Any]]:
    """Return parameters of requests whose drafts are these answers: accepted throughout, where nothing else is said."""
    return [{**params, "max_tokens": MAX_TOKENS, **drafts_of(answer["token_ids"])} for answer in answers]


def biases(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Forbid the commonest tokens of these answers, and favour one that none of them has."""
    stated = [token for answer in answers for token in answer["token_ids"]]
    common = sorted(set(stated), key=stated.count, reverse=True)[:12]
    rare = next(token for token in range(300, 2048) if token not in stated)
    return {**{str(token): -100.0 for token in common}, str(rare): 3.0}


PLAIN = [greedy(tuple(prompt), MAX_TOKENS) for prompt in GIVEN]


@on_v2
def test_logit_bias_is_exact_at_every_draft_position(zoo, baseline):
    """Drafts that are all accepted and drafts that the bias forbids both give unmodified vLLM's answers."""
    params = {"max_tokens": MAX_TOKENS, "logit_bias": biases(PLAIN)}
    biased = baseline.call("inside.generate", prompts=GIVEN, params=params)
    assert all(a["token_ids"] != b["token_ids"] for a, b in zip(biased, PLAIN, strict=True))
    for drafts in (biased, PLAIN):
        found = zoo.call("served.counted", prompts=GIVEN, params=drafted(drafts, **params))
        assert [answer["token_ids"] for answer in found["answers"]] == [answer["token_ids"] for answer in biased]
        if drafts is biased:
            assert found["accepted_by_vllm"] > MAX_TOKENS  # of 4 x 24 tokens: positions after the first decide


@on_v2
def test_too_many_biases_are_refused_before_they_end_the_engine(zoo):
    answer = zoo.call(refusal, params={"logit_bias": {str(token): 1.0 for token in range(1025)}})
    assert "too many entries in logit_bias" in answer["text"]
    assert answer["kinds"] == ["ValueError", "VLLMClientError"]
    assert answer["seen"] == 0
