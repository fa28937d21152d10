"""The benchmark's recorded answers: an engine gives them, and accepts drafts exactly where they are the recording."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.real_models import on_vllm
from tests.engines.engines import Engine
from tests.engines.plain import prompts

PROMPT = list(prompts()[0])
ANSWERS = {
    "repeats": [17, 400, 23, 91, 5, 62] * 6,
    "does not repeat": [(37 * place + 11) % 1900 for place in range(36)],
}


@pytest.mark.parametrize("text", ANSWERS)
def test_the_recorded_answer_is_given_with_and_without_drafts(text: str, engine: Callable[..., Engine]):
    answer = ANSWERS[text]
    params = {"max_tokens": len(answer), "temperature": 0.0, "ignore_eos": True}
    found = {}
    for name, settings in (("plain", None), ("ngram", {"proposer": "ngram", "policy": "fixed"})):
        served = engine("v1", settings, name=f"recorded-{name}")
        found[name] = served.call(on_vllm.answer, prompts=[PROMPT], params=[params], answers=[answer])
        assert found[name]["token_ids"] == [answer]
    assert found["plain"]["steps"] == len(answer)
    assert found["ngram"]["steps"] == len(answer) - found["ngram"]["accepted"]
    assert (found["ngram"]["accepted"] > len(answer) // 2) == (text == "repeats")
