"""Replay of recorded outputs, which counts the draft tokens that a target would accept, without a model.

Under greedy decoding with a known target output, the draft tokens accepted at a step are the longest common prefix of
the draft and the recorded continuation.  For sampled text the same holds in expectation if drafts are one-hot.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "specplug.replay.corpora": ("distractors",),
    "specplug.replay.external": ("load_factory", "replay_external"),
    "specplug.replay.harness": ("harness_factory",),
    "specplug.replay.interleaved": ("replay_interleaved",),
    "specplug.replay.run": ("replay",),
    "specplug.replay.score": ("BATCHES", "Calibration", "Counts", "Roofline", "mean_speedup", "pool"),
    "specplug.replay.setup": ("Result", "Setup"),
    "specplug.replay.items": ("TokenItem", "tokenize"),
    "specplug.replay.traces_io": ("Item", "read_traces", "without_documents"),
    "specplug.text.loading": ("load_tokenizer",),
    "specplug.text.tokenizers": ("Tokenizer",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specplug.replay' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
