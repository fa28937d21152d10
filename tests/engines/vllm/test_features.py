"""vLLM's features beyond plain decoding give the same answers with speculation as in unmodified vLLM.

All features go through each engine as one batch, so that they also share steps; the tests look at their own part.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine, Raised
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import RUNNERS, baseline, forward, ids, kind, prompts

__all__ = ["baseline", "kind"]

NGRAM = {"proposer": "ngram", "policy": "fixed", "options": {"ngram": {"min_n": 1}}}
CHUNK = 64  # tokens of one step: longer prompts are prefilled in chunks, between other requests' drafts

EDIT = list(prompts()[0])
JSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "line": {"type": "integer", "maximum": 9999}},
    "required": ["name", "line"],
    "additionalProperties": False,
}
LOOP = ids("x = 1\ny = 2\nx = 1\ny = 2\nx = 1\ny = 2\nx = 1\n")
NEWLINE = ids("a\nb")[1]

# name -> (prompt, sampling parameters); greedy unless said otherwise
FEATURES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "plain": (EDIT, {}),
    "regex": (LOOP, {"structured_outputs": {"regex": "(x = [0-9]\n){4}y = 77"}, "max_tokens": 40}),
    "json": (list(prompts()[2]), {"structured_outputs": {"json": JSON_SCHEMA}, "max_tokens": 64}),
    "choice": (EDIT, {"structured_outputs": {"choice": ["yes", "no, never"]}}),
    "stop string": (EDIT, {"stop": ["\n"], "max_tokens": 60}),
    "stop string kept": (LOOP, {"stop": ["y ="], "include_stop_str_in_output": True, "ignore_eos": True}),
    "stop string across drafts": (LOOP, {"stop": ["= 2\nx = 1\ny"], "ignore_eos": True}),
    "stop token": (LOOP, {"stop_token_ids": [NEWLINE], "min_tokens": 3, "ignore_eos": True}),
    "min tokens": (LOOP, {"stop_token_ids": [NEWLINE], "min_tokens": 17, "ignore_eos": True}),
    "min tokens before the end": (list(prompts()[3]), {"min_tokens": 40, "max_tokens": 44}),
    "one token": (EDIT, {"max_tokens": 1}),
    "two tokens": (EDIT, {"max_tokens": 2}),
    "ignore eos": (list(prompts()[1]), {"ignore_eos": True, "max_tokens": 72}),
    "logprobs": (EDIT, {"logprobs": 3, "max_tokens": 24}),
    "prompt logprobs": (LOOP, {"prompt_logprobs": 2, "max_tokens": 8}),
    "repetition penalty": (LOOP, {"repetition_penalty": 1.3, "ignore_eos": True}),
    "frequency penalty": (LOOP, {"frequency_penalty": 0.8, "ignore_eos": True}),
    "presence penalty": (LOOP, {"presence_penalty": 0.9, "ignore_eos": True}),
    "penalties and logprobs": (LOOP, {"frequency_penalty": 0.4, "logprobs": 2, "max_tokens": 24, "ignore_eos": True}),
    "bad words": (LOOP, {"bad_words": ["y", "x = 1\n"], "ignore_eos": True}),
    "allowed tokens": (LOOP, {"allowed_token_ids": sorted(set(LOOP[:8])), "ignore_eos": True}),
    "several": (EDIT, {"n": 4, "temperature": 1.0, "top_k": 1, "max_tokens": 12}),
    "long prompt": ((EDIT + LOOP) * 2, {"max_tokens": 16}),
}


def ask(llm: Any, requested: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Answer a batch; per request "outputs", as `inside.generate` describes them, and "prompt_logprobs"."""
    given = [inside.prompt_of(prompt) for prompt, _ in requested]
    params = [inside.sampling(params) for _, params in requested]
    return [
        {
            "outputs": [inside.described(completion) for completion in output.outputs],
            "prompt_logprobs": [
                None if step is None else {str(token): entry.logprob for token, entry in step.items()}
                for step in output.prompt_logprobs or ()
            ],
            "cached": output.num_cached_tokens,
        }
        for output in llm.generate(given, params, use_tqdm=False)
    ]


def counted(llm: Any, requested: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """Answer a batch, under "result", and count what was drafted meanwhile."""
    stage = watching.drafting(llm).stage
    before = stage.metrics.snapshot()
    result = ask(llm, requested)
    return {"result": result, **(stage.metrics.snapshot() - before).as_dict()}


@pytest.fixture(scope="session")
def ours(kind: str, engine: Callable[..., Engine]) -> Engine:
    return engine(**RUNNERS[kind], specplug=NGRAM, name=f"{kind}, chunks", max_num_batched_tokens=CHUNK)


@pytest.fixture(scope="session")
def answers(kind: str, baseline: Engine, ours: Engine) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """All features' answers by name, of unmodified vLLM and of specplug, and the counts."""
    requested = list(FEATURES.values())
    expected = baseline.call(ask, requested=requested)
    found = ours.call(counted, requested=requested)
    return dict(zip(FEATURES, expected, strict=True)), dict(zip(FEATURES, found.pop("result"), strict=True)), found


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["outputs"][0]["text"])


@pytest.mark.parametrize("name", FEATURES)
def test_as_baseline(name, answers):
    """Tokens, text, reasons to stop, and logprobs to 1e-4."""
    expected, found, _ = answers
    for wanted, given in zip(expected[name]["outputs"], found[name]["outputs"], strict=True):
        for key in ("token_ids", "text", "finish_reason", "stop_reason"):
            assert given[key] == wanted[key], key
        assert_same_logprobs(wanted.get("logprobs"), given.get("logprobs"))
    assert_same_logprobs(expected[name]["prompt_logprobs"], found[name]["prompt_logprobs"])


def test_random_stops(kind, baseline, ours):
    """Several stops of every sort in one draft: the first that the text completes ends it, in whatever order."""
    stream = random.Random(5)
    strings = ["x", "y", "= 2", "1\ny", " = 1", "\n", "2\nx =", "= 1\ny = 2\n", "never"]
    requested = [
        (
            LOOP,
            {
                "stop": stream.sample(strings, stream.randint(0, 3)),
                "stop_token_ids": stream.sample(LOOP[:8], stream.randint(0, 1)),
                "include_stop_str_in_output": stream.random() < 0.3,
                "max_tokens": stream.randint(3, 16),
                "logprobs": 1,
            },
        )
        for _ in range(24 if kind == "v1" else 8)
    ]
    expected, found = (engine.call(ask, requested=requested) for engine in (baseline, ours))
    for (_, params), wanted, given in zip(requested, expected, found, strict=True):
        for key in ("token_ids", "text", "finish_reason", "stop_reason"):
            assert given["outputs"][0][key] == wanted["outputs"][0][key], (key, params)
        assert_same_logprobs(wanted["outputs"][0]["logprobs"], given["outputs"][0]["logprobs"])
    assert {type(answer["outputs"][0]["stop_reason"]) for answer in expected} == {type(None), int, str}


def assert_same_logprobs(expected: list[Any] | None, found: list[Any] | None) -> None:
    assert (expected is None) == (found is None)
    for wanted, given in zip(expected or (), found or (), strict=True):
        assert (wanted is None) == (given is None)
        assert given is None or given == pytest.approx(wanted, abs=1e-4)


def test_it_speculates(answers):
    """The batch above was drafted for, grammars and penalties included."""
    _, _, counts = answers
    assert counts["total"]["accepted"] > 50
    assert not counts["faults"]


def test_the_features_do_what_they_say(answers):
    """Both engines could ignore a parameter, so the plain model and the parameters themselves decide."""
    _, found, _ = answers
    assert re.fullmatch("(x = [0-9]\n){4}y = 77", text_of(found["regex"]))
    assert set(json.loads(text_of(found["json"]))) == {"name", "line"}
    assert text_of(found["choice"]) in ("yes", "no, never")
    assert found["stop string"]["outputs"][0]["stop_reason"] == "\n"
    assert text_of(found["stop string kept"]).endswith("y =")
    assert found["stop token"]["outputs"][0]["stop_reason"] == NEWLINE
    assert len(found["min tokens"]["outputs"][0]["token_ids"]) >= 17
    assert len(found["min tokens before the end"]["outputs"][0]["token_ids"]) >= 40
    assert "y" not in text_of(found["bad words"])
    assert len({tuple(output["token_ids"]) for output in found["several"]["outputs"]}) == 1
    assert len(found["several"]["outputs"]) == 4


def test_logprobs_are_the_plain_models(answers):
    _, found, _ = answers
    (answer,) = found["logprobs"]["outputs"]
    context = list(EDIT)
    for token, step in zip(answer["token_ids"], answer["logprobs"], strict=True):
        distribution = forward(context).log_softmax(-1)
        assert {int(token): value for token, value in step.items()} == pytest.approx(
            {int(token): float(distribution[int(token)]) for token in step}, abs=1e-3
        )
        context.append(token)


def test_prefix_caching(ours, baseline):
    """The second time, the prompt's blocks are found in the cache, and drafts read a text that no step computed."""
    long = (LOOP + EDIT) * 2
    (expected,) = baseline.call(ask, requested=[(long, {"max_tokens": 32})])
    for round in range(2):
        found = ours.call(counted, requested=[(long, {"max_tokens": 32})])
        assert found["result"][0]["outputs"] == expected["outputs"]
        assert found["total"]["accepted"] > 0
        assert (found["result"][0]["cached"] > 0) == (round == 1)


def test_up_to_the_longest_context(ours, baseline):
    """A prompt of all but 20 of 1024 tokens is answered up to the limit; one that fills it is refused."""
    long = (EDIT * 8)[: 1024 - 20]
    requested = [(long, {"max_tokens": 100, "ignore_eos": True})]
    (expected,), found = baseline.call(ask, requested=requested), ours.call(counted, requested=requested)
    assert found["result"][0]["outputs"] == expected["outputs"]
    assert len(expected["outputs"][0]["token_ids"]) == 20
    assert found["total"]["accepted"] > 0
    refusals = []
    for engine in (baseline, ours):
        with pytest.raises(Raised) as refused:
            engine.call(ask, requested=[((EDIT * 8)[:1025], {"max_tokens": 4})])
        refusals.append((refused.value.type, refused.value.text))
    assert refusals[0] == refusals[1]
