"""Tiny models with recurrent layers and random weights, one per kind of layer that engines roll back.

Weights are so large that a state which is off by one token changes the text within a few tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

VOCAB = 48

_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def mamba2(vocab: int) -> Any:
    """Return the config of Mamba-2 layers alone: no attention."""
    from transformers import Mamba2Config

    return Mamba2Config(
        vocab_size=vocab,
        hidden_size=64,
        state_size=16,
        num_hidden_layers=2,
        head_dim=16,
        num_heads=8,
        n_groups=1,
        chunk_size=16,
        initializer_range=0.5,
        **_ENDS,
    )


def falcon_h1(vocab: int) -> Any:
    """Return the config of layers with Mamba-2 and attention side by side."""
    from transformers import FalconH1Config

    return FalconH1Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the least that vLLM's attention on a CPU takes
        max_position_embeddings=256,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_chunk_size=16,
        initializer_range=0.5,
        **_ENDS,
    )


def lfm2(vocab: int) -> Any:
    """Return the config of two short convolutions around an attention layer."""
    from transformers import Lfm2Config

    return Lfm2Config(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        conv_dim=64,  # vLLM reads both, as published checkpoints have them
        block_dim=64,
        max_position_embeddings=256,
        layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
        initializer_range=0.4,
        **_ENDS,
    )


def qwen3_next(vocab: int) -> Any:
    """Return the config of a gated delta net before an attention layer."""
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        layer_types=["linear_attention", "full_attention"],
        mlp_only_layers=[0],  # vLLM wants one layer with experts
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        initializer_range=0.4,
        **_ENDS,
    )


def nemotron_h(vocab: int) -> Any:
    """Return the config of Mamba-2 layers around an attention layer, and an MLP."""
    from transformers import NemotronHConfig

    return NemotronHConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        layers_block_type=["linear_attention", "full_attention", "mlp", "linear_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        ssm_state_size=16,
        mamba_num_heads=4,
        mamba_head_dim=16,
        n_groups=1,
        conv_kernel=4,
        chunk_size=16,
        initializer_range=0.5,
        **_ENDS,
    )


CONFIGS: dict[str, Callable[[int], Any]] = {
    "mamba2": mamba2,
    "falcon_h1": falcon_h1,
    "lfm2": lfm2,
    "qwen3_next": qwen3_next,
    "nemotron_h": nemotron_h,
}


@functools.cache
def model(name: str, vocab: int = VOCAB, seed: int = 3) -> Any:
    """Return a model of random weights, in evaluation."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    found = AutoModelForCausalLM.from_config(CONFIGS[name](vocab)).eval()
    for weight, values in found.named_parameters():
        if weight.endswith("A_log"):  # a state remembers dozens of tokens; with usual weights one or two
            values.data = torch.linspace(-4, -1, len(values))
    return found


def save(name: str, folder: Path, vocab: int = VOCAB) -> str:
    """Save a model as published ones are, without a tokenizer; return the folder."""
    model(name, vocab).save_pretrained(folder)
    if name == "nemotron_h":  # in the words of its publisher, which SGLang knows
        path, types = folder / "config.json", {"linear_attention": "mamba", "full_attention": "attention"}
        config = json.loads(path.read_text())
        config["layers_block_type"] = [types.get(kind, kind) for kind in config["layers_block_type"]]
        path.write_text(json.dumps({**config, "mamba_n_groups": config["n_groups"]}))
    return str(folder)
