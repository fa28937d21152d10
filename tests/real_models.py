"""Real models for tests; see `benchmarks.models`, which obtains them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from benchmarks.models import folder
from specplug.testing.equality import judge_greedy

PAIRS = (("gemma3", "smollm2"), ("smollm2", "gemma3"))
"""Targets and draft models."""

MAX_TOKENS = 20

_TEXTS = (
    "The history of the bicycle begins in the early nineteenth century, when",
    "def binary_search(items, target):\n    low, high = 0, len(items) - 1\n",
    "Question: What are the primary colours?\nAnswer:",
)


needs_models = pytest.mark.skipif(
    any(folder(name) is None for name in PAIRS[0]), reason="needs the models of benchmarks.models: run `make models`"
)


def path(name: str) -> str:
    """Return the folder of a model that is there."""
    found = folder(name)
    assert found is not None
    return str(found)


def small() -> str:
    """Return the folder of SmolLM2, which `make test` sets up."""
    found = folder("smollm2")
    if found is None:
        pytest.fail("SmolLM2 is not there: run `make small-model`")
    return str(found)


def settings(draft: str, proposer: str = "crosstok") -> dict[str, Any]:
    """Return settings that draft with a model, for as long as it takes."""
    own: dict[str, Any] = {"model": path(draft), "max_requests": 4, "max_context": 256}
    if proposer == "crosstok":
        own["max_ms"] = None
    faults = {"host_deadline_ms": None}
    return {"proposer": proposer, "policy": "fixed", "faults": faults, "options": {proposer: own}}


@functools.cache
def model(name: str) -> Any:
    """Return a model in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path(name), dtype=torch.float32).eval()


@functools.cache
def prompts(name: str) -> list[list[int]]:
    """Return texts to continue, as a model's ids."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path(name))
    return [list(tokenizer(text).input_ids) for text in _TEXTS]


@functools.cache
def greedy(name: str) -> list[list[int]]:
    """Return what a model answers by itself."""
    return [answered(name, ids, MAX_TOKENS) for ids in prompts(name)]


def assert_greedy(name: str, answers: Sequence[Sequence[int]]) -> None:
    """Check answers to `prompts`."""
    judge_greedy(functools.partial(_forward, name), prompts(name), greedy(name), answers).assert_ok()


def assert_chats(chats: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
    """Check SmolLM2's greedy answers to chats by `generate`."""
    expected = [answered("smollm2", chat, len(found)) for chat, found in zip(chats, answers, strict=True)]
    judge_greedy(functools.partial(_forward, "smollm2"), chats, expected, answers).assert_ok()


def answered(name: str, ids: Sequence[int], tokens: int) -> list[int]:
    """Return what a model answers greedily by itself."""
    with torch.inference_mode():
        found = model(name).generate(torch.tensor([list(ids)]), do_sample=False, max_new_tokens=tokens)
    answer: list[int] = found[0, len(ids) :].tolist()
    return answer


def _forward(name: str, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(name)(input_ids=torch.tensor([list(ids)])).logits[0, -1]
        return logits.float()
