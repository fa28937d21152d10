"""Models with sliding windows: Gemma3, with random weights, against the model without an engine."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.continuations import continuations, nearly
from tests.engines.sglang import inside
from tests.engines.sglang.engines import Engine

VOCAB, WINDOW, TOKENS = 48, 6, 24


@functools.cache
def model() -> Any:
    """Two layers with windows around one without; weights so large that what a token sees changes the text."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(4)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=256,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = Gemma3ForCausalLM(config).eval()
    model.model.embed_tokens.weight.data.mul_(0.05)  # else a token is followed by itself
    return model


@functools.cache
def prompts() -> list[list[int]]:
    """Texts, most of them longer than a window."""
    draw = random.Random(6)
    return [[draw.randrange(VOCAB) for _ in range(3 + 4 * number)] for number in range(8)]


@functools.cache
def truth() -> list[list[int]]:
    """The model's own continuations."""
    return continuations(model(), prompts(), TOKENS)


@pytest.fixture(scope="session")
def gemma(engine: Callable[..., Engine], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path: Path = tmp_path_factory.mktemp("gemma")
    model().save_pretrained(path)
    return engine(
        "SPECPLUG",
        draft_length=4,
        model_path=str(path),
        skip_tokenizer_init=True,
        context_length=128,
        disable_hybrid_swa_memory=True,  # SGLang's attention in plain torch has no cache of its own for windows
        name="Gemma3",
    )


def answers(engine: Engine) -> tuple[list[list[int]], int]:
    references = [nearly(prompt, answer) for prompt, answer in zip(prompts(), truth(), strict=True)]
    params = [
        {"max_new_tokens": TOKENS, "ignore_eos": True, "custom_params": {"specplug_references": reference}}
        for reference in references
    ]
    found = engine.call(inside.generate, prompts=prompts(), params=params)
    return [answer["token_ids"] for answer in found], sum(answer["meta"]["spec_num_correct_drafts"] for answer in found)


def test_windows_of_drafts(gemma):
    found, accepted = answers(gemma)
    assert found == truth()
    assert accepted > 20
