"""Features of SGLang alone give the same answers with drafts as without; for others see `suites.features`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Raised
from tests.engines.plain import ids
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

LONG = LOOP * 5  # prefilled in several chunks

FEATURES: dict[str, Requested] = {
    "logprobs of tokens": (LOOP, {}, {"return_logprob": True, "token_ids_logprob": [NEWLINE, *DIGITS]}),
    "hidden states": (LOOP, {"max_new_tokens": 12}, {"return_hidden_states": True}),
    "regex": (LOOP, {"regex": "(x = [0-9]\n){4}y = 77"}, {}),
    "stop string": (EDIT, {"stop": ["\n"], "max_new_tokens": 60}, {}),
    "long": (LONG, {"ignore_eos": True}, {}),
}
"""By name a prompt, sampling parameters and further arguments; greedy."""


@pytest.fixture(scope="session")
def answered(pair: tuple[Engine, Engine]) -> Answered:
    """All features' answers by name, of SGLang without speculation and of specplug, and the counts of drafts."""
    return both(pair, FEATURES)


def test_hidden_states_and_logprobs_of_named_tokens(answered):
    """Hidden states are returned for the prompt and for each emitted token except the last."""
    expected, found, counts = answered
    for name in FEATURES:
        assert_same(expected[name], found[name])
    states = [answer["hidden states"]["meta"]["hidden_states"] for answer in (expected, found)]
    assert flat(states[1]) == pytest.approx(flat(states[0]), abs=1e-3)
    assert all(len(step) == 3 for step in found["logprobs of tokens"]["meta"]["output_token_ids_logprobs"])
    assert counts["hidden states"][1] > 0


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


def test_answers_are_cached_for_what_follows(pair):
    """Accepted drafts are in the cache as if decoded one by one, so a conversation can continue from them."""
    assert all(engine.call(inside.flush) for engine in pair)
    (first,) = pair[1].call(generate, prompts=[LOOP], params=[{"ignore_eos": True}])
    then = {"prompts": [[*LOOP, *first["token_ids"], *ids("z = 3\n")]], "params": [{}], "return_logprob": True}
    (expected,), (found,) = (engine.call(generate, **then) for engine in pair)
    assert_same(expected, found)
    assert expected["meta"]["cached_tokens"] == 0
    assert found["meta"]["cached_tokens"] > len(LOOP) + 20


# -- other engines --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def paged(engine: Callable[..., Engine]) -> Engine:
    """Pages of 16 tokens."""
    environment = {"SPECPLUG_CONFIG": json.dumps({**NGRAM, "faults": {"host_deadline_ms": None}})}
    return engine("SPECPLUG", environment=environment, **SERVED, page_size=16, name="specplug, pages")


@pytest.mark.slow  # an engine of its own
def test_pages(pair, paged):
    """Chains are verified in whatever pages they fall into."""
    expected, found, counts = both((pair[0], paged), FEATURES)
    for name, answer in found.items():
        assert_same(expected[name], answer)
    assert sum(tokens for _, tokens in counts.values()) > 100


def test_lora_is_refused(engine):
    """SGLang refuses it: it allows adapters only with speculative algorithms that it knows by name."""
    adapted = engine("SPECPLUG", enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj"], name="adapted")
    with pytest.raises(Raised, match=r"LoRA is only compatible with .* not SPECPLUG"):
        adapted.running()
