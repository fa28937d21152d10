"""Conversion of a GGUF file into a folder that transformers, vLLM and SGLang load, in float32.

    python benchmarks/models/convert.py FILE.gguf FOLDER

float32 holds the quantised values exactly, and CPUs are fastest with it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, made: Path) -> None:
    """Write the model, without any trace of its quantisation, and its tokenizer with the chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(quantised)(config)  # one that was read from GGUF cannot be saved
    missing, unexpected = model.load_state_dict(quantised.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # which is tied to the embeddings
        raise SystemExit(f"{gguf}: cannot convert; missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(**source).save_pretrained(made)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
