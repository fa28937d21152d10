"""Requests of a model that reasons: what follows the reasoning, how long it may be, and logprobs of what is sampled.

Drafts are a whole answer, so that one draft crosses the end of the reasoning; the truth is vLLM without speculation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.engines import Engine
from tests.engines.plain import ids
from tests.engines.suites.chats import scripted_model
from tests.engines.vllm.referee import reported

__all__ = ["scripted_model"]

LENGTH = 4
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
JSON = {"structured_outputs": {"json": SCHEMA}, "max_tokens": 40}
PROMPT = ids("How warm is it?")
SAMPLED = {"temperature": 0.7, "top_k": 20, "logprobs": 1, "max_tokens": 24, "ignore_eos": True}
ORACLE = {"proposer": "ngram", "extra_proposers": ["oracle"], "policy": "fixed"}
ENDED = "terminated after accepting the stop token"

KINDS = {"v1": ("v1", {}), "v2": ("v2", {}), "v2 asynchronous": ("v2", {"asynchronous": True})}


def arguments(model: str, backend: str, marker: str = "</think>") -> dict[str, Any]:
    return {
        "model": model,
        "logprobs_mode": "processed_logprobs",
        "structured_outputs_config": {"backend": backend, "reasoning_parser": "deepseek_r1"},
        "reasoning_config": {"reasoning_start_str": "<think>", "reasoning_end_str": marker},
    }


@pytest.fixture(scope="session", params=["xgrammar", pytest.param("guidance", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def truth(engine: Callable[..., Engine], scripted_model: str, backend: str) -> Engine:
    return engine("v1", name=f"baseline, {backend}", installed=False, **arguments(scripted_model, backend))


@pytest.fixture(
    scope="session", params=["v1", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "v1")]
)
def ours(request: pytest.FixtureRequest, engine: Callable[..., Engine], scripted_model: str, backend: str) -> Engine:
    runner, how = KINDS[request.param]
    given = {"draft_length": LENGTH, **how, **arguments(scripted_model, backend)}
    return engine(runner, ORACLE, name=f"{request.param}, {backend}", **given)


def both(truth: Engine, ours: Engine, params: dict[str, Any], drafts: list[int]) -> tuple[Any, Any]:
    """Return the answers of vLLM without speculation, and with `drafts`."""
    given = {"prompts": [PROMPT], "params": params}
    [expected] = truth.call("inside.generate", **given)
    [found] = ours.call("inside.generate", **{**given, "params": {**params, **reported(drafts)}})
    return expected, found


def answered(engine: Engine, params: dict[str, Any]) -> Any:
    [answer] = engine.call("inside.generate", prompts=[PROMPT], params=params)
    return answer


def test_json_follows_the_reasoning(truth, ours):
    """A grammar holds from the end of the reasoning on, in the middle of a draft."""
    whole = answered(truth, JSON)
    assert json.loads(whole["text"].partition("</think>")[2]) == {"city": "Oslo", "unit": "C"}
    expected, found = both(truth, ours, JSON, whole["token_ids"])
    assert found == expected
    free = answered(truth, {"max_tokens": 40})
    assert free["text"] != whole["text"]
    expected, found = both(truth, ours, JSON, free["token_ids"])
    assert found == expected, "drafts that the grammar forbids where the reasoning ends"


@pytest.mark.parametrize("budget", [0, 1, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH])
def test_budgets_of_reasoning(truth, ours, budget):
    """Drafts go on beyond the budget; the reasoning does not."""
    longer = answered(truth, {"max_tokens": 40})
    params = {"max_tokens": 40, "thinking_token_budget": budget}
    expected, found = both(truth, ours, params, longer["token_ids"])
    assert expected["text"] != longer["text"]
    assert found["text"] == expected["text"]
    assert found == expected
    again, found = both(truth, ours, params, expected["token_ids"])
    assert found == again == expected, "drafts that know of the budget"


@pytest.mark.slow  # engines of their own
@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_of_two_tokens(kind, engine, scripted_model):
    """What ends the reasoning by force is longer than what the model ends it by."""
    runner, how = KINDS[kind]
    stated = arguments(scripted_model, "xgrammar", "C.\n</think>")
    truth = engine("v1", name="baseline, two tokens", installed=False, **stated)
    ours = engine(runner, ORACLE, name=f"{kind}, two tokens", draft_length=LENGTH, **how, **stated)
    longer = answered(truth, {"max_tokens": 40})["token_ids"]
    for budget in (0, 1, LENGTH, LENGTH + 1):
        params = {"max_tokens": 40, "thinking_token_budget": budget}
        for drafts in (longer, answered(truth, params)["token_ids"]):
            expected, found = both(truth, ours, params, drafts)
            assert found == expected, budget


def test_processed_logprobs(truth, ours, scripted_model):
    """They are of the distribution that is sampled, whatever was drafted."""
    drafts = answered(truth, {"max_tokens": 40})["token_ids"]
    _, found = both(truth, ours, SAMPLED, drafts)
    emitted = found["token_ids"]
    expected = (logits(scripted_model, [*PROMPT, *emitted])[len(PROMPT) - 1 : -1] / SAMPLED["temperature"]).double()
    kept = expected.topk(SAMPLED["top_k"]).values[:, -1:]
    expected = expected.masked_fill(expected < kept, -torch.inf).log_softmax(-1)
    for place, (token, stated) in enumerate(zip(emitted, found["logprobs"], strict=True)):
        assert stated[str(token)] == pytest.approx(float(expected[place, token]), abs=1e-3)
        assert max(stated.values()) == pytest.approx(float(expected[place].max()), abs=1e-3)


def logits(model: str, text: list[int]) -> torch.Tensor:
    """Return the model's logits [T, V] after each token of a text [T]."""
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(model)(input_ids=torch.tensor([text])).logits[0].float()


def test_drafts_beyond_the_end_of_a_grammar_leave_no_noise(truth, ours):
    """The engine's log says nothing of grammars that were advanced or filled after their end."""
    whole = answered(truth, JSON)
    both(truth, ours, JSON, [*whole["token_ids"], *PROMPT, *PROMPT])
    assert ENDED not in ours.log()
