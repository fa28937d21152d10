"""A model that reasons, with drafts of whole answers: a draft crosses the end of the reasoning, or a stop in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import ids
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_exact import assert_same, generate
from tests.engines.suites.chats import scripted_model

__all__ = ["scripted_model"]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
JSON = {"json_schema": json.dumps(SCHEMA)}
PROMPT = ids("How warm is it?")
ORACLE = {
    "proposer": "ngram",
    "extra_proposers": ["oracle"],
    "policy": "fixed",
    "faults": {"host_deadline_ms": None},
}
ENDED = "terminated after accepting the stop token"


@pytest.fixture(scope="session", params=["xgrammar"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["sync", "overlap"])
def pair(
    request: pytest.FixtureRequest, engine: Callable[..., Engine], scripted_model: str, backend: str
) -> tuple[Engine, Engine]:
    """SGLang without speculation, and specplug whose drafts a request brings."""
    given = {
        "overlap": request.param,
        "model_path": scripted_model,
        "reasoning_parser": "deepseek-r1",
        "grammar_backend": backend,
        "constrained_json_disable_any_whitespace": True,
    }
    environment = {"SPECPLUG_CONFIG": json.dumps(ORACLE)}
    ours = engine("SPECPLUG", draft_length=15, environment=environment, **given, name=f"reasoning, {backend}")
    return engine(**given, name=f"plain reasoning, {backend}"), ours


def answered(engine: Engine, params: dict[str, Any], drafts: list[int] | None = None) -> Any:
    """Return an answer with logprobs, for which `drafts` were made."""
    fields = {"proposer": "oracle", "references": [{"token_ids": drafts}]}
    own = {**params, "custom_params": {"specplug": fields}} if drafts else params
    given = {"prompts": [PROMPT], "params": [own], "return_logprob": True, "require_reasoning": True}
    [answer] = engine.call(generate, **given)
    return answer


def assert_counts(expected: Any, found: Any) -> None:
    """The usage is the same, and the reasoning is a part of the answer."""
    for name in ("completion_tokens", "reasoning_tokens"):
        assert found["meta"][name] == expected["meta"][name], name
    assert 0 < found["meta"]["reasoning_tokens"] <= found["meta"]["completion_tokens"]
    assert found["meta"]["spec_num_correct_drafts"] > 0


def test_json_follows_the_reasoning(pair):
    """A grammar holds from the end of the reasoning on, in the middle of a draft; nothing is noted of its own end."""
    expected, free = (answered(pair[0], params) for params in (JSON, {}))
    assert json.loads(expected["text"].partition("</think>")[2]) == {"city": "Oslo", "unit": "C"}
    assert free["text"] != expected["text"]
    for drafts in (expected["token_ids"], free["token_ids"], [*expected["token_ids"], *PROMPT]):
        found = answered(pair[1], JSON, drafts)
        assert_same(expected, found)
        assert_counts(expected, found)
    assert ENDED not in pair[1].log()


@pytest.mark.parametrize(
    "stops",
    [
        {"stop": ["the unit", "comes", "about"]},
        {"stop": ["about", "comes", "the unit"], "no_stop_trim": True},
        {"stop": ["Oslo.\nF", "never"]},
        {"max_new_tokens": 6},
    ],
)
def test_stops_within_the_reasoning(pair, stops):
    """Reasoning is counted up to the end, and not as far as the draft was right."""
    whole = answered(pair[0], {})
    expected, found = answered(pair[0], stops), answered(pair[1], stops, whole["token_ids"])
    assert_same(expected, found)
    assert_counts(expected, found)
    assert "</think>" not in found["text"]


def test_a_stop_id_within_the_reasoning(pair):
    whole = answered(pair[0], {})
    stops = {"stop_token_ids": [whole["token_ids"][5]]}
    expected, found = answered(pair[0], stops), answered(pair[1], stops, whole["token_ids"])
    assert expected["stop_reason"] == whole["token_ids"][5]
    assert_same(expected, found)
    assert_counts(expected, found)
