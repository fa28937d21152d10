"""Prompts given as embeddings: proposers know where there is no text, and the answers are unmodified vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm import inside
from tests.engines.vllm.referee import model, prompts, reported

PROMPTS = [list(prompt) for prompt in prompts()[:4]]
PARAMS = {"max_tokens": 24, "ignore_eos": True}


def ask(llm: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer all prompts at once, the even ones given as embeddings, the odd ones as token ids."""
    import torch

    table = model().get_input_embeddings()
    given = [
        {"prompt_embeds": table(torch.tensor(prompt)).detach()} if place % 2 == 0 else inside.prompt_of(prompt)
        for place, prompt in enumerate(prompts)
    ]
    outputs = llm.generate(given, [inside.sampling(one) for one in params], use_tqdm=False)
    return [inside.described(output.outputs[0]) for output in outputs]


def recorded(llm: Any, **given: Any) -> dict[str, Any]:
    """Do as `ask`; return the answers, the barriers that the proposer `recorder` saw, and what was accepted."""
    from specplug_testkit.recorder import RECORDS

    from tests.engines.vllm import test_prompt_embeds, watching

    RECORDS.clear()
    before = watching.snapshot(llm)["total"]["accepted"]
    answers = test_prompt_embeds.ask(llm, **given)
    barriers = {(barrier["start"], barrier["stop"]) for r in RECORDS for barrier in r.get("barriers", ())}
    return {
        "answers": answers,
        "barriers": sorted(barriers),
        "accepted": watching.snapshot(llm)["total"]["accepted"] - before,
    }


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_answers_are_stocks_and_gaps_are_known(kind, engine: Callable[..., Engine]):
    baseline = engine(kind, name=f"baseline {kind} with embeddings", installed=False, enable_prompt_embeds=True)
    settings = {"proposer": "recorder", "extra_proposers": ["oracle"], "policy": "fixed"}
    speculating = engine(kind, settings, name=f"speculating {kind} with embeddings", enable_prompt_embeds=True)
    truth = baseline.call(ask, prompts=PROMPTS, params=[PARAMS] * len(PROMPTS))
    for params in ([{**PARAMS, **reported(answer["token_ids"])} for answer in truth], [PARAMS] * len(PROMPTS)):
        found = speculating.call(recorded, prompts=PROMPTS, params=params)
        assert [a["token_ids"] for a in found["answers"]] == [t["token_ids"] for t in truth]
        assert found["accepted"] > 0
        assert found["barriers"] == sorted([0, len(prompt)] for prompt in PROMPTS[::2])
