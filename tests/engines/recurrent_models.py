"""Tiny models with recurrent layers and random weights, one per kind of layer that engines roll back.

Weights are so large that a state which is off by one token changes the text within a few tokens.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

VOCAB = 48

ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
HEADS = {**ATTENTION, "head_dim": 32}  # the least that vLLM's attention on a CPU takes
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    # Mamba-2 layers alone: no attention.
    "mamba2": (
        "Mamba2Config",
        {
            **{"hidden_size": 64, "state_size": 16, "num_hidden_layers": 2, "head_dim": 16, "num_heads": 8},
            **{"n_groups": 1, "chunk_size": 16, "initializer_range": 0.5},
        },
    ),
    # Layers with Mamba-2 and attention side by side.
    "falcon_h1": (
        "FalconH1Config",
        {
            **HEADS,
            **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "initializer_range": 0.5},
            **{"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1},
            **{"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_chunk_size": 16},
        },
    ),
    # Two short convolutions around an attention layer.
    "lfm2": (
        "Lfm2Config",
        {
            **ATTENTION,
            **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "initializer_range": 0.4},
            **{"conv_dim": 64, "block_dim": 64},  # vLLM reads both, as published checkpoints have them
            **{"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False},
        },
    ),
    # A gated delta net before an attention layer.
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **HEADS,
            **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "initializer_range": 0.4},
            "layer_types": ["linear_attention", "full_attention"],
            **{**EXPERTS, "shared_expert_intermediate_size": 32, "mlp_only_layers": [0]},  # vLLM wants one with experts
            **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
            **{"linear_num_key_heads": 1, "linear_num_value_heads": 2},
        },
    ),
    # Mamba-2 layers around an attention layer, and an MLP.
    "nemotron_h": (
        "NemotronHConfig",
        {
            **HEADS,
            **{"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.5},
            "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
            **{"ssm_state_size": 16, "mamba_num_heads": 4, "mamba_head_dim": 16},
            **{"n_groups": 1, "conv_kernel": 4, "chunk_size": 16},
        },
    ),
}
"""By name the class of transformers' config, and sizes."""


@functools.cache
def model(name: str, vocab: int = VOCAB, seed: int = 3) -> Any:
    """Return a model of random weights, in evaluation."""
    import transformers

    kind, sizes = CONFIGS[name]
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    torch.manual_seed(seed)
    config = getattr(transformers, kind)(vocab_size=vocab, **sizes, **ends)
    found = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight, values in found.named_parameters():
        if weight.endswith("A_log"):  # a state remembers dozens of tokens; with usual weights one or two
            values.data = torch.linspace(-4, -1, len(values))
    return found


def save(name: str, folder: Path, vocab: int = VOCAB) -> str:
    """Save a model as published ones are, without a tokenizer; return the folder."""
    model(name, vocab).save_pretrained(folder)
    if name == "nemotron_h":  # in the words of its publisher, which SGLang knows
        path = folder / "config.json"
        types = {"linear_attention": "mamba", "full_attention": "attention"}
        config = json.loads(path.read_text())
        config["layers_block_type"] = [types.get(kind, kind) for kind in config["layers_block_type"]]
        path.write_text(json.dumps({**config, "mamba_n_groups": config["n_groups"]}))
    return str(folder)
