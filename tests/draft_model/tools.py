"""Tiny models of several kinds in folders, and plain forward passes of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

from tests.transformers import toys

CPU = torch.device("cpu")
VOCAB, WINDOW, CONTEXT = toys.VOCAB, toys.WINDOW, toys.CONTEXT


def _gemma3() -> Any:
    shape = {name: value for name, value in toys.SHAPE.items() if not name.endswith("_token_id")}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    more = {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": WINDOW, "layer_types": kinds}
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**shape, **more}))


def save(name: str, folder: Path) -> str:
    """Save a tiny random model, of this module or of `toys`; return its folder."""
    torch.manual_seed(7)
    model = _gemma3() if name == "mixed gemma3" else toys.build_model(name)
    model.save_pretrained(folder)
    return str(folder)


@functools.cache
def plain(path: str) -> Any:
    """Return the model of a folder as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()


@torch.inference_mode()
def next_logits(path: str, ids: Sequence[int]) -> Tensor:
    """Return [V], the logits after a text, by one forward pass over all of it without a cache."""
    logits: Tensor = plain(path)(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
    return logits


def greedy(path: str, ids: Sequence[int], count: int) -> list[int]:
    """Return the most likely continuation of a text, token by token."""
    text = list(ids)
    for _ in range(count):
        text.append(int(next_logits(path, text).argmax()))
    return text[len(ids) :]
