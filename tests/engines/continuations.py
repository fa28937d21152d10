"""A model's output without an engine, the reference for small models with random weights."""

from __future__ import annotations

from typing import Any

import torch


def continuations(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Return each prompt's next `tokens` tokens, the likeliest ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small models wait for threads most of the time
    try:
        with torch.inference_mode():
            texts = [
                model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=None)
                for prompt in prompts
            ]
    finally:
        torch.set_num_threads(threads)
    return [text[0, len(prompt) :].tolist() for prompt, text in zip(prompts, texts, strict=True)]


def nearly(prompt: list[int], answer: list[int], every: int = 9) -> list[int]:
    """Return a text to draft from: the right one, with a wrong token now and then."""
    wrong = [token ^ 1 if place % every == every // 2 else token for place, token in enumerate(answer)]
    return [*prompt, *wrong]
