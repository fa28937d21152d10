"""SmolLM2 on the embedded engine, through its chat template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from benchmarks.real_models import prompts
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests import real_models

CHATS = prompts.read(("chat", "edits", "structured"), each=1)
GREEDY, SEEDED = SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.7, seed=5)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(real_models.small())


def answers(tokenizer: Any, params: SamplingParams, **settings: Any) -> tuple[list[tuple[int, ...]], int]:
    """Return the answers to `CHATS` together, and the accepted draft tokens."""
    engine = Engine(real_models.model("smollm2"), tokenizer, settings={"policy": "fixed", **settings})
    requests = [
        GenerateRequest(prompt=chat.ids(tokenizer), params=replace(params, seed=params.seed and params.seed + place))
        for place, chat in enumerate(CHATS)
    ]
    found = engine.generate(requests)
    engine.close()
    assert not engine.metrics.snapshot().faults
    return [one.token_ids for one in found], sum(one.accepted for one in found)


def test_greedy_chats_are_those_of_generate(tokenizer):
    found, accepted = answers(tokenizer, GREEDY, proposer="ngram")
    assert accepted > 20
    real_models.assert_chats([chat.ids(tokenizer) for chat in CHATS], found)


def test_seeds_give_the_texts_without_speculation(tokenizer):
    found, accepted = answers(tokenizer, SEEDED, proposer="ngram")
    assert accepted > 5
    assert found == answers(tokenizer, SEEDED, mode="off")[0]
