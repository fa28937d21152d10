"""Features of SGLang alone give the same answers with drafts as without; for others see `suites.features`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.engines import Raised
from tests.engines.plain import ids
from tests.engines.sglang import inside
from tests.engines.sglang.test_exact import DRAFTED, EDIT, GRAMMARS, LOOP, assert_same, both, generate, pair, varied

__all__ = ["pair"]


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


def test_answers_are_cached_for_what_follows(pair):
    """Accepted drafts are in the cache as if decoded one by one, so a conversation can continue from them."""
    assert all(engine.call(inside.flush) for engine in pair)
    (first,) = pair[1].call(generate, prompts=[LOOP], params=[{"ignore_eos": True}])
    then = {"prompts": [[*LOOP, *first["token_ids"], *ids("z = 3\n")]], "params": [{}], "return_logprob": True}
    (expected,), (found,) = (engine.call(generate, **then) for engine in pair)
    assert_same(expected, found)
    assert expected["meta"]["cached_tokens"] == 0
    assert found["meta"]["cached_tokens"] > len(LOOP) + 20


@pytest.mark.slow  # an engine of its own
def test_pages(pair, engine):
    """Chains are verified in whatever pages of 16 tokens they fall into."""
    expected, found, counts = both((pair[0], varied(engine, page_size=16)), {**DRAFTED, **GRAMMARS})
    for name, answer in found.items():
        assert_same(expected[name], answer)
    assert sum(tokens for _, tokens in counts.values()) > 100


def test_lora_is_refused(engine):
    """SGLang refuses it: it allows adapters only with speculative algorithms that it knows by name."""
    adapted = engine("SPECPLUG", enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj"], name="adapted")
    with pytest.raises(Raised, match=r"LoRA is only compatible with .* not SPECPLUG"):
        adapted.running()
