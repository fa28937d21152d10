"""Reference for the engines: their model run without an engine, and their prompts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specplug.testing.equality import judge_greedy
from specplug.tools.demo.tasks import KINDS, make_tasks
from tests.engines.launch import TINY

Answers = list[dict[str, Any]]
"""Per prompt "token_ids", "finish_reason" and "stop_reason", as each engine's `inside.generate` returns them."""

MAX_TOKENS = 40

FOLDER = TINY
"""The model: the tiny one, unless `use` names another."""


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@functools.cache
def model() -> Any:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(torch.get_num_threads())  # in a forked process, see `specplug.draft_model.model`
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def use(folder: Path) -> None:
    """Take another model from now on."""
    global FOLDER
    FOLDER = folder
    for cached in (tokenizer, model, prompts, greedy):
        cached.cache_clear()


def forward(context: Sequence[int]) -> torch.Tensor:
    """Return the logits [V] that a plain forward in float32 gives after a context."""
    with torch.inference_mode():
        return model()(input_ids=torch.tensor([list(context)])).logits[0, -1].float()


def ids(text: str) -> list[int]:
    """Return a text's token ids."""
    return list(tokenizer()(text).input_ids)


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Return 24 prompts, the kinds of task in turn, short and long ones mixed."""
    tasks = [make_tasks(kind, "held-out", 6, seed=1) for kind in KINDS]
    return tuple(tuple(ids(task.prompt)) for same in zip(*tasks, strict=True) for task in same)


@functools.cache
def greedy(prompt: tuple[int, ...], max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """Return the plain model's own greedy answer, in the shape of `Answers`."""
    with torch.inference_mode():
        text = model().generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_tokens)[0, len(prompt) :]
    end = model().generation_config.eos_token_id
    stopped = int(text[-1]) == end
    return {
        "token_ids": text.tolist(),
        "finish_reason": "stop" if stopped else "length",
        "stop_reason": end if stopped else None,
    }


def assert_greedy(
    given: Sequence[Sequence[int]], expected: Sequence[dict[str, Any]], actual: Sequence[dict[str, Any]]
) -> None:
    """Judge answers of one engine by another's; near ties are weighed by the plain model."""
    texts = [[answer["token_ids"] for answer in answers] for answers in (expected, actual)]
    judge_greedy(forward, given, *texts).assert_ok()
    reasons = [(answer["finish_reason"], answer["stop_reason"]) for answer in expected]
    found = [
        # vLLM names no token where the end of sequence stopped it.
        (answer["finish_reason"], reason if answer["stop_reason"] is None else answer["stop_reason"])
        for answer, (_, reason) in zip(actual, reasons, strict=True)
    ]
    assert texts[0] != texts[1] or found == reasons
