"""Lossy verifiers, which accept plausible draft tokens: opt-in, because the output no longer follows the target.

Both take one threshold per request, from 0 to 1, where higher is stricter and 1 is lossless.  They differ in the
probability p(d) under the target from which on a draft token d is accepted whatever the random numbers say:

`ThresholdVerifier`: p(d) >= threshold * max(p).

`TypicalVerifier`: p(d) >= min(threshold, sqrt(threshold) * exp(-H(p))), where H is the entropy in nats, so that less is
required of a draft token where the target is uncertain (Cai et al., "Medusa: Simple LLM Inference Acceleration
Framework with Multiple Decoding Heads", ICML 2024, arXiv:2401.10774, section 3.2).

All other draft tokens are verified losslessly.  A token that a grammar, top-k, top-p or min-p rules out has p(d) = 0
and is never accepted.  In greedy rows p is the target's distribution at temperature 1.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Verifier
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.draft_distribution import column_probs, probs_of, was_drawn
from specplug.verify.reference import ReferenceVerifier
from specplug.verify.target import OFF, target_probs


class LossyVerifier(Verifier):
    """Accepts draft tokens that are plausible enough, and verifies the others losslessly.

    The logits at the position of a plausible token are replaced by those of a distribution with only this token, which
    the reference verifier always accepts.  Takes O(B N V) memory in addition to the reference verifier's.
    """

    def __init__(self, context: PluginContext) -> None:
        self._default = float(context.options.threshold)
        self._lossless = ReferenceVerifier()

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        """Accept a prefix of each row's draft, add one token, and report the departure; see `ReferenceVerifier`."""
        if not draft.draft_length:
            found = self._lossless.verify(draft, target, sampling, uniforms)
            return replace(found, departed=torch.zeros(draft.batch_size, device=draft.device))
        positions = torch.arange(draft.draft_length, device=draft.device)
        is_draft = positions < draft.lengths[:, None]
        vocab = target.logits.shape[-1]
        drafted = torch.where(is_draft, draft.token_ids.long(), 0).clamp(0, vocab - 1)
        logits = target.at(torch.minimum(positions, draft.lengths[:, None].long()))
        thresholds = self._thresholds(sampling)[:, None]
        probs = _probs(logits, sampling)
        p = _at(probs, drafted)
        plausible = is_draft & (thresholds < 1) & (p > 0) & self._is_plausible(probs, p, thresholds)

        found = self._lossless.verify(draft, _only(target, drafted, plausible), sampling, uniforms)
        kept = self._kept_losslessly(draft, logits, drafted, p, sampling)
        refused = torch.where(plausible, 1 - kept, 0.0)
        accepted = positions < found.num_accepted[:, None]
        return replace(found, departed=torch.where(accepted, refused, 0.0).sum(1).float())

    @abstractmethod
    def _is_plausible(self, probs: Tensor, p: Tensor, thresholds: Tensor) -> Tensor:
        """[B, N] bool, given the distributions [B, N, V], the draft tokens' probabilities [B, N], thresholds [B, 1]."""

    def _thresholds(self, sampling: SamplingBatch) -> Tensor:
        """[B] float32: each row's threshold."""
        stated = sampling.acceptance_threshold
        if stated is None:
            return torch.full_like(sampling.temperature, self._default)
        return torch.where(stated.isnan(), self._default, stated)

    def _kept_losslessly(
        self, draft: Draft, logits: Tensor, drafted: Tensor, p: Tensor, sampling: SamplingBatch
    ) -> Tensor:
        """[B, N]: the probability with which a lossless verifier keeps each draft token."""
        columns = column_probs(draft, sampling.temperature)
        sampled = p
        if columns is not None:
            q = probs_of(columns, drafted, draft.draft_vocab, logits.shape[-1])
            drawn = was_drawn(draft, sampling.temperature)
            sampled = torch.where(drawn, (p / q.clamp(min=1e-30)).clamp(max=1.0), p)
        greedy = (logits.argmax(-1) == drafted).to(p.dtype)
        return torch.where((sampling.temperature == 0)[:, None], greedy, sampled)


class ThresholdVerifier(LossyVerifier):
    """Accepts a draft token whose probability is at least the threshold times that of the likeliest token."""

    def _is_plausible(self, probs: Tensor, p: Tensor, thresholds: Tensor) -> Tensor:
        return p >= thresholds * probs.amax(-1)


class TypicalVerifier(LossyVerifier):
    """Accepts a draft token by Medusa's typical acceptance."""

    def _is_plausible(self, probs: Tensor, p: Tensor, thresholds: Tensor) -> Tensor:
        entropy = torch.special.entr(probs).sum(-1)
        return p >= torch.minimum(thresholds, thresholds.sqrt() * torch.exp(-entropy))


def merged(opted_in: Tensor, lossy: Verification, lossless: Verification) -> Verification:
    """Return the lossy decision in the rows of `opted_in` [B] bool, and the lossless one in the others."""
    departed = lossy.departed
    return Verification(
        torch.where(opted_in[:, None], lossy.token_ids, lossless.token_ids),
        torch.where(opted_in, lossy.num_accepted, lossless.num_accepted),
        None if departed is None else torch.where(opted_in, departed, 0.0),
    )


def _probs(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """[B, N, V]: the target's distributions, at temperature 1 in greedy rows."""
    temperature = torch.where(sampling.temperature == 0, 1.0, sampling.temperature)
    return target_probs(logits, temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def _only(target: TargetLogits, drafted: Tensor, plausible: Tensor) -> TargetLogits:
    """Return the target's logits with nothing but the draft token where it is plausible."""
    positions = torch.arange(drafted.shape[1], device=drafted.device)
    rows = torch.where(plausible, target.starts[:, None] + positions, len(target.logits)).flatten()
    logits = torch.cat([target.logits, target.logits[:1]])  # the last row takes the rest
    logits.index_fill_(0, rows, OFF)
    logits[rows, drafted.flatten()] = 0.0
    return TargetLogits(logits[:-1], target.starts)


def _at(probs: Tensor, tokens: Tensor) -> Tensor:
    return probs.gather(-1, tokens[..., None])[..., 0]
