"""EAGLE heads over the tiny target with weights that nobody trained, in the form of checkpoints.

A head's first guess is the target's own choice once more, so it is right where the target repeats itself.  A random
layer with attention moves it from there, so that each draft depends on all that the head has cached.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.engines.launch import TINY

SEED = 5
SCALE = 0.02
LAYERS = [1, 2, 3]
"""The target's layers whose hidden states a head of EAGLE-3 reads."""


def write_head(folder: Path, architecture: str) -> Path:
    """Write a head of one layer, which shares the target's embeddings, and return its folder.

    Args:
        folder: created if it does not exist.
        architecture: the engine's name of the head's class; a head of EAGLE-3 if it ends so.
    """
    third = architecture.endswith("Eagle3")
    config = json.loads((TINY / "config.json").read_text())
    config |= {"architectures": [architecture], "num_hidden_layers": 1, "tie_word_embeddings": third}
    hidden = config["hidden_size"]
    inner = config["intermediate_size"]
    # EAGLE's `fc` reads the newest token and the target's last hidden state, EAGLE-3's three hidden states.
    shapes = {"fc": (hidden, (3 if third else 2) * hidden), "layers.0.mlp.down_proj": (hidden, inner)}
    shapes |= {f"layers.0.self_attn.{name}_proj": (hidden, (2 if third else 1) * hidden) for name in "qkv"}
    shapes |= {f"layers.0.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    shapes |= {"layers.0.self_attn.o_proj": (hidden, hidden)}
    random = torch.Generator().manual_seed(SEED)
    weights = {f"{name}.weight": SCALE * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    weights["fc.weight"][:, -hidden:] += torch.eye(hidden)
    for name in "qk":
        weights[f"layers.0.self_attn.{name}_proj.weight"] *= 10  # far from even attention
    norms = ["layers.0.post_attention_layernorm"]
    if third:
        norms += ["layers.0.input_layernorm", "layers.0.hidden_norm", "norm"]
        read = {"eagle_aux_hidden_state_layer_ids": LAYERS, "use_aux_hidden_state": True}
        config |= {"draft_vocab_size": config["vocab_size"], "eagle_config": read}
    elif architecture == "LlamaForCausalLMEagle":  # SGLang's, whose `fc` has a bias
        weights["fc.bias"] = torch.zeros(hidden)
    weights |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
