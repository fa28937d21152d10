"""Replay of recorded outputs, which counts the draft tokens that a target would accept, without a model.

Under greedy decoding with a known target output, the draft tokens accepted at a step are the longest common prefix of
the draft and the recorded continuation.  For sampled text the same holds in expectation if drafts are one-hot.
"""

from specplug.replay.calibration import Calibration
from specplug.replay.engine import Setup
from specplug.replay.items import Item, TokenItem, read_traces, tokenize, without_documents
from specplug.replay.run import replay
from specplug.replay.score import Result, ScoringRoofline, StepCounts, mean_speedup, pool
from specplug.text.loading import load_tokenizer

__all__ = [
    "Calibration",
    "Item",
    "Result",
    "ScoringRoofline",
    "Setup",
    "StepCounts",
    "TokenItem",
    "load_tokenizer",
    "mean_speedup",
    "pool",
    "read_traces",
    "replay",
    "tokenize",
    "without_documents",
]
