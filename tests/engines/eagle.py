"""An EAGLE head with random weights over the tiny target, in the form of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.engines.launch import TINY

SEED, SCALE = 5, 0.06


def write_head(folder: Path, architecture: str) -> Path:
    """Write a head of one layer, which shares the target's embeddings, and return its folder.

    Args:
        folder: created if it does not exist.
        architecture: the engine's name of the head's class.
    """
    config = json.loads((TINY / "config.json").read_text())
    config |= {"architectures": [architecture], "num_hidden_layers": 1, "tie_word_embeddings": False}
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {"fc": (hidden, 2 * hidden), "layers.0.mlp.down_proj": (hidden, inner)}
    shapes |= {f"layers.0.self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
    shapes |= {f"layers.0.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    random = torch.Generator().manual_seed(SEED)
    weights = {f"{name}.weight": SCALE * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    weights["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
