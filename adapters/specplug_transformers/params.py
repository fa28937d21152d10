"""Sampling parameters of the embedded engine, validated on construction, and the logits processors that apply them.

A draft token changes how penalties, bad words and grammars treat later tokens, so position j is processed with the text
followed by the first j draft tokens.  The processors are Hugging Face's own, plus the two penalties of the OpenAI API
that Hugging Face lacks.  The verifier applies temperature, top-k, top-p and min-p, which do not depend on the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from specplug.errors import RequestError

AllowedTokens = Callable[[int, Tensor], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters and stop conditions of one request.  The defaults decode 128 tokens greedily.

    Attributes:
        max_tokens: maximum number of tokens to emit.
        temperature: 0 is greedy.
        top_k, top_p, min_p: as in Hugging Face, and in that order; 0, 1 and 0 are off.
        seed: makes a sampled request reproducible, given the same drafts; None draws a fresh one.
        repetition_penalty: penalty of tokens in prompt and output; 1 is off.
        presence_penalty, frequency_penalty: penalties of tokens in the output; 0 is off.
        logit_bias: added to the logits of single token ids; -inf forbids one.
        bad_words: token id sequences that must not appear.
        min_tokens: minimum number of tokens to emit; until then all ids that end the request are forbidden.
        allowed_tokens: Hugging Face's `prefix_allowed_tokens_fn`: a grammar as a function of the ids so far.  It is
            only called with texts that it allows.
        stop: strings that end the request; the text is cut before them.
        stop_token_ids: ids that end the request, besides the model's end-of-sequence ids; not part of the text.
        ignore_eos: do not end at the model's end-of-sequence ids.

    Raises:
        RequestError: a value is out of range or of the wrong type.
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
        for name, expected, holds in _RULES:
            value = getattr(self, name)
            try:
                good = holds(value)
            except (TypeError, AttributeError):  # a value of another type
                good = False
            if not good:
                raise RequestError.build(f"bad sampling parameter {name!r}", found=repr(value), expected=expected)
        if self.min_tokens > self.max_tokens:
            raise RequestError.build(
                "bad sampling parameter 'min_tokens'",
                found=self.min_tokens,
                expected=f"at most max_tokens, {self.max_tokens}",
            )

    @property
    def named_token_ids(self) -> Mapping[str, list[int]]:
        """The token ids in these parameters, by parameter, for callers that know the vocabulary to check."""
        return {
            "logit_bias": list(self.logit_bias),
            "bad_words": [token for words in self.bad_words for token in words],
            "stop_token_ids": list(self.stop_token_ids),
        }


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_RULES: tuple[tuple[str, str, Callable[..., bool]], ...] = (
    ("max_tokens", "an integer >= 1", lambda v: _is_int(v) and v >= 1),
    ("temperature", "a finite number >= 0", lambda v: 0 <= v < math.inf),
    ("top_k", "an integer >= 0, where 0 is off", lambda v: _is_int(v) and v >= 0),
    ("top_p", "a number in (0, 1]", lambda v: 0 < v <= 1),
    ("min_p", "a number in [0, 1]", lambda v: 0 <= v <= 1),
    ("seed", "an integer or None", lambda v: v is None or _is_int(v)),
    ("repetition_penalty", "a finite number > 0", lambda v: 0 < v < math.inf),
    ("presence_penalty", "a finite number", lambda v: -math.inf < v < math.inf),
    ("frequency_penalty", "a finite number", lambda v: -math.inf < v < math.inf),
    ("logit_bias", "a mapping of token ids to numbers", lambda v: all(b < math.inf for b in v.values())),
    ("bad_words", "a list of non-empty lists of token ids", lambda v: all(len(words) for words in v)),
    ("min_tokens", "an integer >= 0", lambda v: _is_int(v) and v >= 0),
    ("allowed_tokens", "a function", lambda v: v is None or callable(v)),
    ("stop", "a list of non-empty strings", lambda v: not isinstance(v, str) and all(_is_text(s) for s in v)),
    ("stop_token_ids", "a list of token ids", lambda v: all(map(_is_int, v))),
)


Processor = Callable[[Tensor, Tensor], Tensor]


class OutputPenalty(LogitsProcessor):
    """OpenAI's presence and frequency penalties, subtracted once and per occurrence of a token in the output."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return `scores` [1, V] minus the penalties for `input_ids` [1, L]."""
        output = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self._presence * (counts > 0) - self._frequency * counts


def build_processors(
    params: SamplingParams, prompt_length: int, end_token_ids: Sequence[int], device: torch.device
) -> Processor | None:
    """Return the processors that the parameters need, in Hugging Face's order; None if they need none.

    Args:
        end_token_ids: ids that are forbidden before `min_tokens` tokens.
    """
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(
            SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in params.logit_bias.items()])
        )
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        processors.append(OutputPenalty(params.presence_penalty, params.frequency_penalty, prompt_length))
    if params.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(words) for words in params.bad_words]))
    if params.min_tokens and end_token_ids:
        processors.append(
            MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, list(end_token_ids), device=str(device))
        )
    if params.allowed_tokens is not None:
        processors.append(PrefixConstrainedLogitsProcessor(params.allowed_tokens, num_beams=1))
    return processors if len(processors) else None  # type: ignore[return-value]


def process_row(
    processors: Processor, text: Sequence[int], draft: Sequence[int], ends: Collection[int], logits: Tensor
) -> None:
    """Process one request's logits [N + 1, V] in place, for `text` followed by at most N draft tokens.

    Stops at a draft token whose logit has become -inf, as it will be rejected, or that is one of `ends`, the ids that
    end the request: later logits are unused, and a grammar is never called with a text that it does not allow.
    """
    ids = torch.tensor([*text, *draft], dtype=torch.int64, device=logits.device)[None]
    for position in range(len(draft) + 1):
        row = logits[position : position + 1]
        row.copy_(processors(ids[:, : len(text) + position], row.clone()))
        if position < len(draft) and (draft[position] in ends or row[0, draft[position]] == -torch.inf):
            return
