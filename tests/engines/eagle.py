"""EAGLE heads over the tiny model, with weights that nobody trained.

A head's first guess is the target's own choice once more, so it is right where the target repeats itself.  A random
layer with attention moves it from there, so that each draft depends on all that the head has cached.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.engines.launch import TINY

NOISE = 0.02
"""The standard deviation of the random weights."""

LAYERS = [1, 2, 3]
"""The target's layers whose hidden states the head of EAGLE-3 reads."""


def save(folder: Path, generation: int = 1) -> Path:
    """Write the head of EAGLE-1 or EAGLE-3 as SGLang loads it, and return its folder, which is made if need be."""
    config = json.loads((TINY / "config.json").read_text()) | {"num_hidden_layers": 1}
    generator = torch.Generator().manual_seed(5)

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * NOISE

    size = config["hidden_size"]
    if generation == 1:
        weights = layer(config, size, drawn)
        # It reads the embedding of the newest token and the target's last hidden state.
        weights |= {"fc.weight": torch.cat([drawn(size, size), torch.eye(size) + drawn(size, size)], 1)}
        weights |= {"fc.bias": torch.zeros(size)}
        config |= {"architectures": ["LlamaForCausalLMEagle"], "tie_word_embeddings": False}
    else:
        weights = layer(config, 2 * size, drawn)
        weights |= {f"layers.0.{name}.weight": torch.ones(size) for name in ("input_layernorm", "hidden_norm")}
        weights |= {
            "fc.weight": torch.cat([drawn(size, 2 * size), torch.eye(size)], 1),
            "norm.weight": torch.ones(size),
        }
        config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": config["vocab_size"]}
        config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": LAYERS, "use_aux_hidden_state": True}}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def layer(config: dict[str, Any], read: int, drawn: Any) -> dict[str, Tensor]:
    """Return the weights of a decoder layer whose attention reads `read` features."""
    size, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    weights = {
        "self_attn.q_proj": drawn(queries, read) * 10,  # far from even attention
        "self_attn.k_proj": drawn(keys, read) * 10,
        "self_attn.v_proj": drawn(keys, read),
        "self_attn.o_proj": drawn(size, queries),
        "mlp.gate_proj": drawn(inner, size),
        "mlp.up_proj": drawn(inner, size),
        "mlp.down_proj": drawn(size, inner),
        "post_attention_layernorm": torch.ones(size),
    }
    return {f"layers.0.{name}.weight": weight for name, weight in weights.items()}
