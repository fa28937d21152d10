"""SGLang's features beyond plain decoding give the same answers with drafts as without.

All features go through each engine as one batch, so that they also share steps; the tests look at their own part.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Raised
from tests.engines.plain import ids, prompts
from tests.engines.sglang import inside
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_exact import (
    DIGITS,
    EDIT,
    LOOP,
    NEWLINE,
    NGRAM,
    SERVED,
    Answered,
    Requested,
    assert_same,
    both,
    flat,
    generate,
    pair,
)

__all__ = ["pair"]

JSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "line": {"type": "integer", "maximum": 9999}},
    "required": ["name", "line"],
    "additionalProperties": False,
}
LONG = LOOP * 5  # prefilled in several chunks

# name -> (prompt, sampling parameters, further arguments); greedy
FEATURES: dict[str, Requested] = {
    "plain": (EDIT, {}, {}),
    "regex": (LOOP, {"regex": "(x = [0-9]\n){4}y = 77"}, {}),
    "json": (list(prompts()[2]), {"json_schema": json.dumps(JSON_SCHEMA), "max_new_tokens": 64}, {}),
    "ebnf": (LOOP, {"ebnf": 'root ::= ("x = 1\\ny = " [3-9] "\\n")+', "max_new_tokens": 24}, {}),
    "stop string": (EDIT, {"stop": ["\n"], "max_new_tokens": 60}, {}),
    "stop string kept": (LOOP, {"stop": ["y ="], "no_stop_trim": True, "ignore_eos": True}, {}),
    "stop string across drafts": (LOOP, {"stop": ["= 2\nx = 1\ny"], "ignore_eos": True}, {}),
    "stop regex": (LOOP, {"stop_regex": ["y = [0-9]\nx"], "ignore_eos": True}, {}),
    "stop token": (LOOP, {"stop_token_ids": [NEWLINE]}, {}),
    "one token": (EDIT, {"max_new_tokens": 1}, {}),
    "two tokens": (EDIT, {"max_new_tokens": 2}, {}),
    "ignore eos": (list(prompts()[1]), {"ignore_eos": True, "max_new_tokens": 72}, {}),
    "logprobs": (LOOP, {"ignore_eos": True}, {"return_logprob": True}),
    "top logprobs": (EDIT, {}, {"return_logprob": True, "top_logprobs_num": 3}),
    "logprobs of tokens": (LOOP, {}, {"return_logprob": True, "token_ids_logprob": [NEWLINE, *DIGITS]}),
    "prompt logprobs": (LOOP, {}, {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}),
    "hidden states": (LOOP, {"max_new_tokens": 12}, {"return_hidden_states": True}),
    "long prompt": (LONG, {"ignore_eos": True}, {}),
    "short prompt": (LOOP[:3], {}, {}),
}


@pytest.fixture(scope="session")
def answered(pair: tuple[Engine, Engine]) -> Answered:
    """All features' answers by name, of SGLang without speculation and of specplug, and the counts of drafts."""
    return both(pair, FEATURES)


@pytest.mark.parametrize("name", FEATURES)
def test_as_without_speculation(name, answered):
    expected, found, _ = answered
    assert_same(expected[name], found[name])


def test_with_drafts(answered):
    """Drafts are made for every feature that allows them."""
    _, found, counts = answered
    short = {"one token", "two tokens", "stop string", "stop token", "stop string kept", "short prompt"}
    for name in FEATURES.keys() - short:
        assert counts[name][1] > 0, name
        assert found[name]["meta"]["spec_num_correct_drafts"] > 0, name


def test_the_features_do_what_they_say(answered):
    """Both engines could ignore the parameters, so their effects are checked."""
    _, found, _ = answered
    text = {name: answer["text"] for name, answer in found.items()}
    assert re.fullmatch("(x = [0-9]\n){4}y = 77", text["regex"])
    assert set(json.loads(text["json"])) == {"name", "line"}
    assert re.match("x = 1\ny = [3-9]\n", text["ebnf"])
    assert found["stop string"]["stop_reason"] == "\n"
    assert text["stop string kept"].endswith("y =")
    assert found["stop string across drafts"]["stop_reason"] == "= 2\nx = 1\ny"
    assert found["stop regex"]["finish_reason"] == "stop"
    assert found["stop token"]["stop_reason"] == NEWLINE
    assert [len(found[name]["token_ids"]) for name in ("one token", "two tokens", "ignore eos")] == [1, 2, 72]
    assert len(found["logprobs"]["meta"]["output_token_logprobs"]) == 40
    assert all(len(step) == 3 for step in found["top logprobs"]["meta"]["output_top_logprobs"])
    assert all(len(step) == 3 for step in found["logprobs of tokens"]["meta"]["output_token_ids_logprobs"])
    assert len(found["prompt logprobs"]["meta"]["input_token_logprobs"]) == len(LOOP)


def test_hidden_states(answered):
    """They are returned for the prompt and for each emitted token except the last."""
    expected, found, _ = (each.get("hidden states") for each in answered)
    states = [answer["meta"]["hidden_states"] for answer in (expected, found)]
    assert flat(states[1]) == pytest.approx(flat(states[0]), abs=1e-3)


def test_no_token_at_all(pair):
    """Only the prompt is read.  With any speculation SGLang gives the log probability of the next token, too."""
    given = {"prompts": [EDIT], "params": [{"max_new_tokens": 0}], "return_logprob": True, "logprob_start_len": 0}
    (expected,), (found,) = (engine.call(generate, **given) for engine in pair)
    assert expected["token_ids"] == found["token_ids"] == []
    assert_same({**expected, "meta": inputs(expected)}, {**found, "meta": inputs(found)})
    assert len(inputs(found)["input_token_logprobs"]) == len(EDIT)


def inputs(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of the prompt."""
    return {name: value for name, value in answer["meta"].items() if name.startswith("input_")}


def test_several_answers(pair):
    """With n above 1 all answers are equal here, and drafts are counted for each."""
    given = {"prompts": [EDIT, LOOP], "params": [{"n": 3}] * 2}
    expected, found = (engine.call(generate, **given) for engine in pair)
    assert len(found) == 6
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)
        assert other["meta"]["spec_num_correct_drafts"] > 0


def stream(engine: Any, prompt: list[int], params: dict[str, Any]) -> list[list[int]]:
    """Return the tokens so far, by answer."""
    answers = engine.generate(input_ids=prompt, sampling_params={"temperature": 0.0, **params}, stream=True)
    return [list(answer["output_ids"]) for answer in answers]


def test_streaming(pair):
    """A step's tokens come together, so with drafts there are fewer parts."""
    expected, found = (
        engine.call(stream, prompt=LOOP, params={"max_new_tokens": 40, "ignore_eos": True}) for engine in pair
    )
    assert found[-1] == expected[-1]
    assert 1 < len(found) < len(expected) / 2
    for parts in (expected, found):
        assert all(after[: len(before)] == before for before, after in itertools.pairwise(parts))


def test_prefix_caching(pair):
    """The second time the prompt is found in the cache, and drafts read a text that no step computed."""
    given = {"prompts": [LONG], "params": [{"max_new_tokens": 32, "ignore_eos": True}]}
    (expected,) = pair[0].call(generate, **given)
    assert pair[1].call(inside.flush)
    for round in range(2):
        (found,) = pair[1].call(generate, **given)
        assert_same(expected, found)
        assert found["meta"]["spec_num_correct_drafts"] > 0
        assert (found["meta"]["cached_tokens"] > 0) == (round == 1)


def test_answers_are_cached_for_what_follows(pair):
    """Accepted drafts are in the cache as if decoded one by one, so a conversation can continue from them."""
    assert all(engine.call(inside.flush) for engine in pair)
    (first,) = pair[1].call(generate, prompts=[LOOP], params=[{"ignore_eos": True}])
    then = {"prompts": [[*LOOP, *first["token_ids"], *ids("z = 3\n")]], "params": [{}], "return_logprob": True}
    (expected,), (found,) = (engine.call(generate, **then) for engine in pair)
    assert_same(expected, found)
    assert expected["meta"]["cached_tokens"] == 0
    assert found["meta"]["cached_tokens"] > len(LOOP) + 20


def test_up_to_the_longest_context(pair):
    """A prompt of all but 20 of 1024 tokens is answered as far as SGLang goes; one that is too long is refused."""
    given = {"prompts": [(EDIT * 8)[: 1024 - 20]], "params": [{"max_new_tokens": 100, "ignore_eos": True}]}
    refusals = []
    for engine in pair:
        with pytest.raises(Raised) as refused:
            engine.call(generate, prompts=[(EDIT * 8)[:1025]], params=[{"max_new_tokens": 4}])
        refusals.append((refused.value.type, refused.value.text))
    assert refusals[0] == refusals[1]
    given["params"][0]["max_new_tokens"] = 19
    (expected,), (found,) = (engine.call(generate, **given) for engine in pair)
    assert_same(expected, found)
    assert found["meta"]["spec_num_correct_drafts"] > 0


# -- other engines --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def paged(engine: Callable[..., Engine]) -> Engine:
    """Pages of 16 tokens."""
    environment = {"SPECPLUG_CONFIG": json.dumps({**NGRAM, "faults": {"host_deadline_ms": None}})}
    return engine("SPECPLUG", environment=environment, **SERVED, page_size=16, name="specplug, pages")


@pytest.mark.slow  # an engine of its own
def test_pages(pair, paged):
    """Chains are verified in whatever pages they fall into."""
    expected, found, counts = both(
        (pair[0], paged), {"long": (LONG, {"ignore_eos": True}, {}), **dict(list(FEATURES.items())[:9])}
    )
    for name, answer in found.items():
        assert_same(expected[name], answer)
    assert sum(tokens for _, tokens in counts.values()) > 100


def test_lora_is_refused(engine):
    """SGLang refuses it: it allows adapters only with speculative algorithms that it knows by name."""
    adapted = engine("SPECPLUG", enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj"], name="adapted")
    with pytest.raises(Raised, match=r"LoRA is only compatible with .* not SPECPLUG"):
        adapted.running()
