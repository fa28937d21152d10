"""The distribution that draft tokens were drawn from, over a draft vocabulary and over the target's vocabulary.

A proposer may draw from a subset of the target's vocabulary (`Draft.draft_vocab`).  A verifier needs the probability of
each draft token, and the whole distribution at one position of each row, so the columns are never expanded to
[B, N, V].  `write_probs` writes the input of an engine's own verifier.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import Verifier
from specplug.types.caps import Distribution, VerifierCaps
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.target import target_probs


def column_probs(draft: Draft, temperature: Tensor) -> Tensor | None:
    """Return [B, N, Vd] float64, the probability of each column; None for one-hot drafts.

    Entries are undefined where no token was drawn.  `temperature` [B] applies to `draft_logits`; 0 is treated as 1,
    because tokens of greedy rows are verified as one-hot.
    """
    if draft.distribution is Distribution.PROBS and draft.draft_probs is not None:
        return normalised(draft.draft_probs)
    if draft.distribution is Distribution.LOGITS and draft.draft_logits is not None:
        return normalised(target_probs(draft.draft_logits, torch.where(temperature == 0, 1.0, temperature)))
    return None


def was_drawn(draft: Draft, temperature: Tensor) -> Tensor:
    """Return [B, N] bool, true for tokens that are verified against the distribution; the others are one-hot drafts.

    In greedy rows (temperature 0), tokens drawn from `draft_logits` are one-hot drafts.
    """
    if draft.distribution is Distribution.ONE_HOT:
        return torch.zeros_like(draft.token_ids, dtype=torch.bool)
    drawn = torch.ones_like(draft.token_ids, dtype=torch.bool) if draft.drawn is None else draft.drawn
    return drawn & (temperature != 0)[:, None] if draft.distribution is Distribution.LOGITS else drawn


def probs_of(columns: Tensor, token_ids: Tensor, draft_vocab: Tensor | None, vocab_size: int) -> Tensor:
    """Return [B, N], the probability of each of `token_ids` [B, N] int64 under `columns` [B, N, Vd]; 0 outside them."""
    if draft_vocab is None:
        return columns.gather(2, token_ids[:, :, None])[:, :, 0]
    places = torch.arange(len(draft_vocab), device=draft_vocab.device)
    column_of = torch.full((vocab_size,), -1, device=draft_vocab.device).index_copy_(0, draft_vocab, places)
    column = column_of[token_ids]
    return torch.where(column >= 0, columns.gather(2, column.clamp(min=0)[:, :, None])[:, :, 0], 0.0)


def scattered(columns: Tensor, draft_vocab: Tensor | None, vocab_size: int) -> Tensor:
    """Return [..., V]: `columns` [..., Vd] over the target's vocabulary, 0 outside the draft vocabulary."""
    if draft_vocab is None:
        return columns
    full = columns.new_zeros(*columns.shape[:-1], vocab_size)
    return full.index_copy_(-1, draft_vocab, columns)


def write_probs(buffer: Tensor, draft: Draft) -> None:
    """Write `draft_probs` over the target's vocabulary, with probability 1 for one-hot drafts, as engines expect.

    Args:
        buffer: [B, N, V] float32, on any device; may be `draft.draft_probs` itself if columns are token ids.
        draft: with `draft_probs`.
    """
    stated = draft.draft_probs
    assert stated is not None
    if draft.draft_vocab is not None:
        buffer.zero_().index_copy_(2, draft.draft_vocab.to(buffer.device), stated.to(buffer.device))
    elif buffer is not stated:
        buffer.copy_(stated)
    if draft.drawn is not None:
        certain = ~draft.drawn.to(buffer.device)[:, :, None]
        index = draft.token_ids.clamp(min=0).long().to(buffer.device)[:, :, None]
        buffer.masked_fill_(certain, 0.0)
        buffer.scatter_(2, index, torch.where(certain, 1.0, buffer.gather(2, index)))


def normalised(distribution: Tensor) -> Tensor:
    """Return the distribution in float64, renormalised to remove the float32 rounding error of its sum."""
    distribution = distribution.double()
    return distribution / distribution.sum(-1, keepdim=True)


class FittedVerifier(Verifier):
    """A wrapper that passes one-hot drafts to a verifier in place of distributions that it does not declare.

    Any token can be verified losslessly as one-hot, whatever distribution it was drawn from.  A verifier that ignored
    a draft's distribution would not know which rule applies, so this is not left to each engine's adapter.
    """

    def __init__(self, verifier: Verifier, caps: VerifierCaps) -> None:
        self._verifier = verifier
        self._takes = caps.distributions

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        fitting = draft if draft.distribution in self._takes else draft.as_one_hot()
        return self._verifier.verify(fitting, target, sampling, uniforms)
