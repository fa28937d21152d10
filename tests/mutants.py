"""Mutants of the reference verifier: controls that every test of losslessness must reject.

Each mutant has one mistake that real implementations have made.  A test that cannot distinguish them from the reference
proves nothing.  Some mistakes show only under a condition that the class names; a test must provide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from specplug.testing.output_distribution import halved, tempered, uniform
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.reference import ReferenceVerifier


class WrongVerifier(ReferenceVerifier):
    """Base of the mutants; skips the shortcut for greedy batches, which would hide most mistakes."""

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        return super().verify(draft, target, replace(sampling, all_greedy=False), uniforms)


class DroppedMask(WrongVerifier):
    """Verifies all N entries of the buffer, so that padding beyond a row's length can be accepted.

    Shows on rows shorter than the buffer, when the logits after their bonus position are not those that follow from the
    padding.
    """

    def _lengths(self, draft: Draft) -> Tensor:
        return torch.full_like(draft.lengths, draft.draft_length).long()


class OffByOneBonus(WrongVerifier):
    """Draws the bonus token from the distribution at the last draft token's position instead of the next one."""

    def _next_token_weights(
        self, target_distribution: Tensor, q: Tensor, num_accepted: Tensor, lengths: Tensor
    ) -> Tensor:
        index = torch.arange(target_distribution.shape[1], device=target_distribution.device)
        index = torch.where(index == lengths[:, None], (index - 1).clamp(min=0), index)
        shifted = target_distribution.gather(1, index[:, :, None].expand_as(target_distribution))
        return super()._next_token_weights(shifted, q, num_accepted, lengths)


class ResamplesFromTarget(WrongVerifier):
    """Draws the recovered token from p instead of the residual, so that the rejected token gets a second chance.

    Shows on drafts that are drawn from a stated distribution.
    """

    def _next_token_weights(
        self, target_distribution: Tensor, q: Tensor, num_accepted: Tensor, lengths: Tensor
    ) -> Tensor:
        return super()._next_token_weights(target_distribution, torch.zeros_like(q), num_accepted, lengths)


class ReusedNumber(WrongVerifier):
    """Samples with the number that decides on tokens which were drawn.

    After such a token's rejection it is not uniform, and after a one-hot draft's it draws the token anew.
    """

    def _draw_number(self, uniforms: Uniforms, num_accepted: Tensor) -> Tensor:
        draft_length = uniforms.accept.shape[1]
        if draft_length == 0:
            return super()._draw_number(uniforms, num_accepted)
        return uniforms.accept.gather(1, num_accepted[:, None].clamp(max=draft_length - 1))[:, 0]


class UniformDraftDistribution(WrongVerifier):
    """Verifies drafts as if they were drawn uniformly from the vocabulary.

    Shows on drafts that are drawn from a stated distribution.
    """

    def _drafted_probs(self, *args: Any) -> Tensor:
        vocab: int = args[-1]
        return torch.full_like(super()._drafted_probs(*args), 1.0 / vocab)

    def _draft_distribution_at(self, *args: Any) -> Tensor:
        return uniform(super()._draft_distribution_at(*args))


class TemperedDraftDistribution(WrongVerifier):
    """Uses the draft distribution at twice the temperature that drafts were drawn at.

    Shows on drafts that are drawn from a stated distribution; a one-hot draft is the same at any temperature.
    """

    def _draft_distribution(self, draft: Draft, sampling: SamplingBatch) -> Tensor | None:
        distribution = super()._draft_distribution(draft, sampling)
        return None if distribution is None else tempered(distribution)


class AcceptsAlways(WrongVerifier):
    """Keeps every draft token."""

    def _keeps(self, p: Tensor, q: Tensor, numbers: Tensor, drawn: Tensor, is_own: Tensor) -> Tensor:
        return torch.ones_like(is_own)


class LenientThreshold(WrongVerifier):
    """Gives draft tokens a second chance: lossy acceptance as some engines offer it."""

    def _keeps(self, p: Tensor, q: Tensor, numbers: Tensor, drawn: Tensor, is_own: Tensor) -> Tensor:
        return super()._keeps(p, halved(q), numbers, drawn, is_own | (numbers < p))


LOSSY_MUTANTS: Mapping[str, type[ReferenceVerifier]] = MappingProxyType(
    {
        "dropped validity mask": DroppedMask,
        "off-by-one bonus": OffByOneBonus,
        "resampling from p": ResamplesFromTarget,
        "reused random number": ReusedNumber,
        "uniform draft law": UniformDraftDistribution,
        "draft law at another temperature": TemperedDraftDistribution,
        "accepts always": AcceptsAlways,
        "lenient threshold": LenientThreshold,
    }
)
