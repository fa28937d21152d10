"""The benchmark's recorded answers: an engine gives them, and accepts drafts exactly where they are the recording."""

from __future__ import annotations

import pytest

from benchmarks.real_models import on_vllm
from tests.engines.engines import Engine
from tests.engines.plain import prompts

PROMPT = list(prompts()[0])
ANSWERS = {
    "repeats": [17, 400, 23, 91, 5, 62] * 6,
    "does not repeat": [(37 * place + 11) % 1900 for place in range(36)],
}


@pytest.mark.parametrize("kind", ["v1"], indirect=True)
@pytest.mark.parametrize("text", ANSWERS)
def test_the_recorded_answer_is_given_with_and_without_drafts(text: str, zoo: Engine):
    answer = ANSWERS[text]
    found = {}
    for is_on in (False, True):
        fields = {"enabled": is_on, "store": False}
        params = {"max_tokens": len(answer), "temperature": 0.0, "ignore_eos": True, "extra_args": {"specplug": fields}}
        found[is_on] = zoo.call(on_vllm.answer, prompts=[PROMPT], params=[params], answers=[answer])
        assert found[is_on]["token_ids"] == [answer]
    assert found[False]["steps"] == len(answer)
    assert found[True]["steps"] == len(answer) - found[True]["accepted"]
    assert (found[True]["accepted"] > len(answer) // 2) == (text == "repeats")
    own = zoo.call(on_vllm.answer, prompts=[PROMPT], params=[params])
    assert own["token_ids"] != [answer], "the model decides again"
