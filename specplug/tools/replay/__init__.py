"""Replay of recorded outputs, which counts the draft tokens that a target would accept, without a model.

Under greedy decoding with a known target output, the draft tokens accepted at a step are the longest common prefix of
the draft and the recorded continuation.  For sampled text the same holds in expectation if drafts are one-hot.
"""

from specplug.text.tokenizers import load_tokenizer
from specplug.tools.replay.engine import Setup
from specplug.tools.replay.items import Item, read_traces, tokenize
from specplug.tools.replay.run import replay

__all__ = ["Item", "Setup", "load_tokenizer", "read_traces", "replay", "tokenize"]
