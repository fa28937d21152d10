"""Features of SGLang alone give the same answers with drafts as without; for others see `suites.features`."""

from __future__ import annotations

import pytest

from tests.engines.engines import Raised
from tests.engines.plain import ids
from tests.engines.sglang import inside
from tests.engines.sglang.test_fields import difference, trial
from tests.engines.suites.features import EDIT, LOOP

__all__ = ["trial"]


def test_no_token_at_all(trial):
    """Only the prompt is read.  With any speculation SGLang gives the log probability of the next token, too."""
    given = {"prompts": [EDIT], "params": [{"max_new_tokens": 0}], "return_logprob": True, "logprob_start_len": 0}
    (expected,), (found,) = (engine.call(inside.generate, **given) for engine in (trial.control, trial.drafted))
    assert expected["token_ids"] == found["token_ids"] == []
    stated = [{name: value for name, value in one["meta"].items() if "input_" in name} for one in (expected, found)]
    assert not difference(*stated)
    assert len(stated[0]["input_token_logprobs"]) == len(EDIT)


def test_answers_are_cached_for_what_follows(trial):
    """Accepted drafts are in the cache as if decoded one by one, so a conversation can continue from them."""
    assert all(engine.call(inside.flush) for engine in (trial.control, trial.drafted))
    (first,) = trial.drafted.call(inside.generate, prompts=[LOOP], params=[{"ignore_eos": True}])
    then = {"prompts": [[*LOOP, *first["token_ids"], *ids("z = 3\n")]], "params": [{}], "return_logprob": True}
    (expected,), (found,) = (engine.call(inside.generate, **then) for engine in (trial.control, trial.drafted))
    for name in ("token_ids", "text", "finish_reason", "stop_reason"):
        assert found[name] == expected[name]
    stated = [one["meta"]["output_token_logprobs"] for one in (expected, found)]
    assert not difference(*stated)
    assert expected["meta"]["cached_tokens"] == 0
    assert found["meta"]["cached_tokens"] > len(LOOP) + 20


def test_lora_is_refused(engine):
    """SGLang refuses it: it allows adapters only with speculative algorithms that it knows by name."""
    adapted = engine("SPECPLUG", enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj"], name="adapted")
    with pytest.raises(Raised, match=r"LoRA is only compatible with .* not SPECPLUG"):
        adapted.running()
