"""Logits processors of a request's sampling parameters, applied at every draft position.

A draft token changes how penalties, bad words and grammars treat later tokens, so position j is processed with the text
followed by the first j draft tokens.  The processors are Hugging Face's own, plus the two penalties of the OpenAI API
that Hugging Face lacks.  The verifier applies temperature, top-k, top-p and min-p, which do not depend on the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

from specplug_transformers.params import SamplingParams

Processor = Callable[[Tensor, Tensor], Tensor]


class OutputPenalty(LogitsProcessor):
    """OpenAI's presence and frequency penalties, subtracted once and per occurrence of a token in the output."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self._presence, self._frequency, self._prompt_length = presence, frequency, prompt_length

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
    found = LogitsProcessorList()
    if params.logit_bias:
        found.append(SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in params.logit_bias.items()]))
    if params.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        found.append(OutputPenalty(params.presence_penalty, params.frequency_penalty, prompt_length))
    if params.bad_words:
        found.append(NoBadWordsLogitsProcessor([list(words) for words in params.bad_words]))
    if params.min_tokens and end_token_ids:
        found.append(
            MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, list(end_token_ids), device=str(device))
        )
    if params.allowed_tokens is not None:
        found.append(PrefixConstrainedLogitsProcessor(params.allowed_tokens, num_beams=1))
    return found if len(found) else None  # type: ignore[return-value]


def process_row(processors: Processor, text: Sequence[int], draft: Sequence[int], logits: Tensor) -> None:
    """Process one request's logits [N + 1, V] in place, for `text` followed by at most N draft tokens.

    Stops at a draft token whose logit has become -inf: it will be rejected, so later logits are unused, and a grammar
    is never called with a text that it does not allow.
    """
    ids = torch.tensor([*text, *draft], dtype=torch.int64, device=logits.device)[None]
    for position in range(len(draft) + 1):
        row = logits[position : position + 1]
        row.copy_(processors(ids[:, : len(text) + position], row.clone()))
        if position < len(draft) and row[0, draft[position]] == -torch.inf:
            return
