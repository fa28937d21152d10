"""One row of a batch of `model.generate`: its logits processors and its stopping criteria.

Rows advance by different numbers of tokens, so each is processed alone.  What may depend on a row's place in the batch
is shown the row as each row of a whole batch, of which its own place is read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process, stopping_criteria
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

_SAME_FOR_ALL_ROWS = {
    getattr(module, name)
    for module, names in (
        (
            logits_process,
            "EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty ForcedBOSTokenLogitsProcessor "
            "ForcedEOSTokenLogitsProcessor InfNanRemoveLogitsProcessor LogitNormalization MinLengthLogitsProcessor "
            "MinNewTokensLengthLogitsProcessor MinPLogitsWarper NoBadWordsLogitsProcessor NoRepeatNGramLogitsProcessor "
            "SequenceBiasLogitsProcessor SuppressTokensAtBeginLogitsProcessor SuppressTokensLogitsProcessor "
            "TemperatureLogitsWarper TopHLogitsWarper TopKLogitsWarper TopPLogitsWarper TypicalLogitsWarper",
        ),
        (stopping_criteria, "EosTokenCriteria MaxLengthCriteria MaxTimeCriteria StopStringCriteria"),
    )
    for name in names.split()
}
"""Transformers' classes that hold nothing of single rows; by exact type, as a subclass may."""


def processors_of(row: int, paddings: Sequence[Tensor], processors: LogitsProcessorList) -> Callable[..., Tensor]:
    """Return the processors of one row, which they see with its left padding, as in `generate`: some count positions.

    Args:
        paddings: the padding of each row of the batch.
    """
    mine = [_bound(row, it) if type(it) is PrefixConstrainedLogitsProcessor else it for it in processors]

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        ids = torch.cat([paddings[row][None], input_ids], 1)
        for original, processor in zip(processors, mine, strict=True):
            if len(paddings) == 1 or type(original) in _SAME_FOR_ALL_ROWS or original is not processor:
                scores = processor(ids, scores)
            else:
                scores = processor(_batch(ids, paddings), _batch(scores, paddings))[row : row + 1]
        return scores

    return process


class RowEnds:
    """Where the rows of a batch end.

    `generate` goes on with a row that has stopped until all have, unless one of the criteria knows the end of sequence.

    Args:
        paddings: the padding of each row.
        criteria: the stopping criteria.

    Attributes:
        token_ids: the end-of-sequence ids among the criteria.
    """

    def __init__(self, paddings: Sequence[Tensor], criteria: StoppingCriteriaList) -> None:
        self._paddings = paddings
        self._alike = StoppingCriteriaList(it for it in criteria if type(it) in _SAME_FOR_ALL_ROWS)
        self._others = StoppingCriteriaList(it for it in criteria if type(it) not in _SAME_FOR_ALL_ROWS)
        eos = [it for it in criteria if type(it) is EosTokenCriteria]
        self.token_ids = [token for it in eos for token in it.eos_token_id.flatten().tolist()]
        self._goes_on = not any(hasattr(it, "eos_token_id") for it in criteria)
        self._ends = [0] * len(paddings)  # lengths, padding included

    def stop_when(self, row: int) -> Callable[[Sequence[int]], bool]:
        """Return the function that says whether a row ends after its tokens, prompt included."""
        padding = self._paddings[row]

        def stop(token_ids: Sequence[int]) -> bool:
            ids = torch.cat([padding, torch.tensor(token_ids, dtype=padding.dtype, device=padding.device)])[None]
            if not self._ends[row] and self._is_met(row, ids):
                self._ends[row] = ids.shape[1]
            if self._goes_on:
                return all(self._ends) and ids.shape[1] >= max(self._ends)
            return self._ends[row] > 0

        return stop

    def cut(self, answers: list[tuple[int, ...]], padded_length: int) -> list[tuple[int, ...]]:
        """Return the answers without what rows emitted after the last of them had stopped."""
        return [answer[: max(self._ends) - padded_length] for answer in answers] if self._goes_on else answers

    def _is_met(self, row: int, ids: Tensor) -> bool:
        met: Any = self._alike(ids, None)[0]
        if self._others:
            met = met | self._others(_batch(ids, self._paddings), None)[row]
        return bool(met)


def _bound(row: int, processor: PrefixConstrainedLogitsProcessor) -> Any:
    """Return the grammar of one row, for a batch of that row alone: it may not know how other texts go on."""
    bound = copy.copy(processor)
    allowed = processor._prefix_allowed_tokens_fn
    number = row // processor._num_beams
    bound._prefix_allowed_tokens_fn = lambda _only_row, ids: allowed(number, ids)
    bound._num_beams = 1
    return bound


def _batch(row: Tensor, paddings: Sequence[Tensor]) -> Tensor:
    return row.repeat(len(paddings), 1)
