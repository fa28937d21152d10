"""The embedded engine: the full specplug pipeline for Hugging Face causal language models, wherever torch runs.

from specplug_transformers import Engine, GenerateRequest, SamplingParams

engine = Engine(model, tokenizer, settings={"proposer": "ngram", "num_speculative_tokens": 15})
[output] = engine.generate([GenerateRequest(prompt="...", params=SamplingParams(max_tokens=64))])
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Engine": "engine",
    "GenerateRequest": "intake",
    "RequestOutput": "state",
    "SamplingParams": "params",
    "TransformersEngine": "text_engine",
    "generate": "custom_generate",
    "speculative_generate": "custom_generate",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a name on first use, because the plug-in module of this package must load without torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'specplug_transformers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"specplug_transformers.{_HOME[name]}"), name)
