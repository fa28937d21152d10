"""An EAGLE head over the tiny model, with weights that nobody trained.

Its first guess is the target's own choice once more, so it is right where the target repeats itself.  A random layer
with attention moves it from there, so that each draft depends on all that the head has cached.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.engines.launch import TINY


def save(folder: Path, noise: float = 0.02, seed: int = 5) -> Path:
    """Write the head as SGLang loads it, and return its folder.

    Args:
        folder: where to; made if need be.
        noise: the standard deviation of the random weights.
        seed: of the random weights.
    """
    config = json.loads((TINY / "config.json").read_text())
    size, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or size // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * noise

    layer = {
        "self_attn.q_proj": drawn(queries, size) * 10,  # far from even attention
        "self_attn.k_proj": drawn(keys, size) * 10,
        "self_attn.v_proj": drawn(keys, size),
        "self_attn.o_proj": drawn(size, queries),
        "mlp.gate_proj": drawn(inner, size),
        "mlp.up_proj": drawn(inner, size),
        "mlp.down_proj": drawn(size, inner),
        "post_attention_layernorm": torch.ones(size),
    }
    weights = {f"layers.0.{name}.weight": weight for name, weight in layer.items()}
    weights["fc.weight"] = torch.cat([drawn(size, size), torch.eye(size) + drawn(size, size)], dim=1)
    weights["fc.bias"] = torch.zeros(size)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    config |= {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
