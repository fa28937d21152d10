"""Prompts given as embeddings: proposers know where there is no text, and the answers are unmodified SGLang's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from specplug.testing.equality import judge_greedy
from tests.engines.plain import forward, prompts
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_images import SETTINGS, drafted, note_spans
from tests.engines.sglang.test_spec_greedy import fields

PROMPTS = [list(prompt) for prompt in prompts()[:6]]
SERVED: dict[str, Any] = {
    "disable_radix_cache": True,
    "dtype": "bfloat16",
}  # what SGLang wants and turns embeddings into


def ask(engine: Any, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer all prompts at once, given as embeddings."""
    import torch
    from sglang.srt.managers.io_struct import GenerateReqInput

    from tests.engines.plain import model

    table = model().get_input_embeddings()

    async def answer(prompt: list[int], own: dict[str, Any]) -> dict[str, Any]:
        requested = {"temperature": 0.0, "max_new_tokens": 40, "ignore_eos": True, **own}
        given = GenerateReqInput(input_embeds=table(torch.tensor(prompt)).tolist(), sampling_params=requested)
        return inside.described(await anext(engine.tokenizer_manager.generate_request(given, None)))

    async def answers() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(answer, prompts, params))

    return engine.loop.run_until_complete(answers())


@pytest.mark.slow  # engines of their own: nothing else serves embeddings
def test_answers_are_stocks_and_gaps_are_known(engine: Callable[..., Engine]):
    environment = {"SPECPLUG_CONFIG": json.dumps(SETTINGS)}
    ours = engine("SPECPLUG", environment=environment, **SERVED, name="speculating with embeddings")
    plain = [{}] * len(PROMPTS)
    truth = [
        answer["token_ids"] for answer in engine(**SERVED, name="embeddings").call(ask, prompts=PROMPTS, params=plain)
    ]
    referring = [fields(references=[{"token_ids": answer}]) for answer in truth]
    for params, least in ((plain, 20), (referring, 60)):
        for plant in (trees.watch, note_spans):
            ours.inside(plant)
        try:
            answers = ours.call(ask, prompts=PROMPTS, params=params)
            spans = ours.inside(drafted)["spans"]
        finally:
            ours.inside(trees.restore)
        found = [answer["token_ids"] for answer in answers]
        judge_greedy(forward, PROMPTS, truth, found, tolerance=0.2, allowed_near_ties=1).assert_ok()
        assert sum(answer["meta"]["spec_num_correct_drafts"] for answer in answers) > least
        assert spans == sorted([0, len(prompt)] for prompt in PROMPTS)
