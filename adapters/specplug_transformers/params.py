"""Sampling parameters of the embedded engine, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specplug.errors import RequestError
from specplug.types.request import Sampling

AllowedTokens = Callable[[int, Tensor], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends.  The defaults are greedy decoding of 128 tokens.

    Attributes:
        max_tokens: most tokens to emit.
        temperature: 0 is greedy.
        top_k, top_p, min_p: as in Hugging Face, and in that order; 0, 1 and 0 are off.
        seed: makes a sampled request reproducible; None draws a fresh one.
        repetition_penalty: of tokens in prompt and output; 1 is off.
        presence_penalty, frequency_penalty: of tokens in the output; 0 is off.
        logit_bias: added to the logits of single token ids.
        bad_words: token id sequences that must not appear.
        min_tokens: the end of sequence is forbidden before so many tokens.
        allowed_tokens: Hugging Face's `prefix_allowed_tokens_fn`: a grammar as a function of the ids so far.
        stop: strings that end the request; the text is cut before them.
        stop_token_ids: ids that end it, beside the model's end-of-sequence ids.
        ignore_eos: do not end at the model's end-of-sequence ids.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    allowed_tokens: AllowedTokens | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require("max_tokens", self.max_tokens, self.max_tokens >= 1, ">= 1")
        _require("temperature", self.temperature, self.temperature >= 0, ">= 0")
        _require("top_k", self.top_k, self.top_k >= 0, ">= 0, where 0 is off")
        _require("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]")
        _require("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "> 0")
        _require("min_tokens", self.min_tokens, 0 <= self.min_tokens <= self.max_tokens, "in [0, max_tokens]")
        _require("stop", self.stop, not isinstance(self.stop, str) and all(self.stop), "a list of non-empty strings")
        _require("bad_words", self.bad_words, all(self.bad_words), "a list of non-empty lists of token ids")

    @property
    def sampling(self) -> Sampling:
        """The part that plug-ins see."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)


def _require(name: str, value: Any, holds: bool, expected: str) -> None:
    if not holds:
        raise RequestError.build(f"bad sampling parameter {name!r}", found=repr(value), expected=expected)
