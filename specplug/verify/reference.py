"""The reference verifier: speculative sampling in plain torch, which faster verifiers must match.

A one-hot draft token d is verified by coupling: the target's token is drawn at its position with the number that would
draw it without a draft, and d is kept if it is that token, which has probability p(d), where p is the target's
distribution.  Otherwise the drawn token itself is emitted.  So the text is a function of the random numbers alone: the
same as without drafts, whatever is drafted.

A token d that was drawn from a stated distribution q is kept with probability min(1, p(d) / q(d)).  If it is rejected,
the recovered token is drawn from max(p - q, 0), renormalised (Leviathan, Kalman and Matias, "Fast Inference from
Transformers via Speculative Decoding", ICML 2023; Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", arXiv:2302.01318, 2023).  This keeps more of such drafts than coupling, and its text depends on
them.

If every draft token is kept, the bonus token is drawn from the target's distribution after the last one.  In both cases
the emitted tokens follow the target's distribution.  A greedy row needs no special code: its p is one-hot, so every
number draws the argmax.  If the host knows that all rows are greedy, `verify_greedy` gives the same result without
computing any distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specplug.errors import ContractError
from specplug.interfaces import PluginContext, Verifier
from specplug.types.caps import Distribution
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Uniforms, Verification
from specplug.verify.draft_distribution import column_probs, normalised, probs_of, scattered, was_drawn
from specplug.verify.target import target_probs


class ReferenceVerifier(Verifier):
    """Lossless verification of chains.  Reads nothing back to the host; takes O(B N V) memory in float64.

    A distribution over a draft vocabulary is expanded to the target's vocabulary at only one position per row.

    Ids within a row's length must lie in [0, V); the contents of the draft's buffers beyond it are ignored.
    """

    def __init__(self, context: PluginContext | None = None) -> None:
        """Every plug-in is built with a context; this one ignores it."""

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, uniforms: Uniforms) -> Verification:
        """Accept a prefix of each row's draft and add one token.

        Raises:
            ContractError: the draft is a tree, or shapes do not match.
        """
        _check(draft, target, uniforms)
        if sampling.all_greedy:
            return verify_greedy(draft, target)
        lengths = self._lengths(draft)
        is_draft = torch.arange(draft.draft_length, device=draft.device) < lengths[:, None]
        drafted = torch.where(is_draft, draft.token_ids.long(), 0).clamp(0, target.logits.shape[-1] - 1)

        target_distribution = self._target_distribution(target, sampling, lengths, draft.draft_length)
        columns = self._draft_distribution(draft, sampling)
        drawn = was_drawn(draft, sampling.temperature)
        vocab = target.logits.shape[-1]
        p = target_distribution[:, : draft.draft_length]
        is_own = _draw(p, uniforms.draw[:, : draft.draft_length]) == drafted

        q = self._drafted_probs(draft, columns, drafted, vocab)
        kept = self._keeps(_at(p, drafted), q, uniforms.accept, drawn, is_own)
        num_accepted = (kept & is_draft).long().cumprod(1).sum(1)
        q = self._draft_distribution_at(draft, columns, num_accepted, vocab)
        rejects_drawn = pad(drawn & is_draft, (0, 1)).gather(1, num_accepted[:, None])
        weights = self._next_token_weights(
            target_distribution, torch.where(rejects_drawn, q, 0.0), num_accepted, lengths
        )
        next_token = _draw(weights, self._draw_number(uniforms, num_accepted))
        return _join(drafted, num_accepted, next_token)

    def _lengths(self, draft: Draft) -> Tensor:
        """[B] int64: draft tokens per row."""
        return draft.lengths.long()

    def _target_distribution(
        self, target: TargetLogits, sampling: SamplingBatch, lengths: Tensor, draft_length: int
    ) -> Tensor:
        """[B, N + 1, V] float64: p at every position; beyond a row's length, p of its bonus token is repeated."""
        positions = torch.arange(draft_length + 1, device=lengths.device)
        logits = target.at(torch.minimum(positions, lengths[:, None]))
        distribution = target_probs(logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        return normalised(distribution)

    def _draft_distribution(self, draft: Draft, sampling: SamplingBatch) -> Tensor | None:
        """[B, N, Vd] float64: the draft distribution, over the draft vocabulary; None for one-hot drafts."""
        return column_probs(draft, sampling.temperature)

    def _drafted_probs(self, draft: Draft, columns: Tensor | None, drafted: Tensor, vocab: int) -> Tensor:
        """[B, N] float64: q of each draft token, undefined for one-hot drafts and beyond a row's length."""
        if columns is None:
            return torch.ones(drafted.shape, dtype=torch.float64, device=drafted.device)
        return probs_of(columns, drafted, draft.draft_vocab, vocab)

    def _draft_distribution_at(self, draft: Draft, columns: Tensor | None, places: Tensor, vocab: int) -> Tensor:
        """[B, V] float64: q at `places` [B], undefined for one-hot drafts and at and beyond a row's length."""
        if columns is None or not draft.draft_length:
            return torch.zeros(len(places), vocab, dtype=torch.float64, device=places.device)
        places = places.clamp(max=draft.draft_length - 1)
        return scattered(_position(columns, places), draft.draft_vocab, vocab)

    def _keeps(self, p: Tensor, q: Tensor, numbers: Tensor, drawn: Tensor, is_own: Tensor) -> Tensor:
        """[B, N] bool: true for draft tokens that pass.

        Compares a product, not the ratio: this never divides by 0, and p >= q always passes because numbers are below
        1.

        Args:
            p, q: of each draft token.
            numbers: that decide on tokens which were drawn.
            drawn: [B, N] bool, true for tokens drawn from a stated distribution.
            is_own: [B, N] bool, true where the target draws the draft token by itself.
        """
        return torch.where(drawn, numbers * q < p, is_own)

    def _next_token_weights(
        self, target_distribution: Tensor, q: Tensor, num_accepted: Tensor, lengths: Tensor
    ) -> Tensor:
        """[B, V] float64: unnormalised distribution of the recovered token, or of the bonus token, where `q` is 0."""
        p = _position(target_distribution, num_accepted)
        residual = (p - q).clamp(min=0)
        # p == q has no residual and rejects with probability 0 up to rounding, so any distribution may replace it.
        return torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)

    def _draw_number(self, uniforms: Uniforms, num_accepted: Tensor) -> Tensor:
        """[B] float64: the number that draws the token after the accepted ones."""
        return _at(uniforms.draw, num_accepted)


def _check(draft: Draft, target: TargetLogits, uniforms: Uniforms) -> None:
    """Check shapes only: values stay on the device."""
    draft.validate()
    if draft.parents is not None:
        raise ContractError.build(
            "this verifier takes chains", who="reference verifier", found="parents", remedy="Call Draft.as_chain first"
        )
    full = draft.draft_logits if draft.distribution is Distribution.LOGITS else draft.draft_probs
    vocab = target.logits.shape[-1]
    if draft.draft_vocab is None and full is not None and full.shape[-1] != vocab:
        raise ContractError.build(
            f"{draft.distribution.value} and the target's logits differ in vocabulary",
            who="reference verifier",
            found=full.shape[-1],
            expected=vocab,
        )
    batch = draft.batch_size
    draft_length = draft.draft_length
    if uniforms.accept.shape != (batch, draft_length) or uniforms.draw.shape != (batch, draft_length + 1):
        raise ContractError.build(
            "random numbers do not fit the draft",
            who="reference verifier",
            found=f"accept {tuple(uniforms.accept.shape)}, draw {tuple(uniforms.draw.shape)}",
            expected=f"accept {(batch, draft_length)}, draw {(batch, draft_length + 1)}",
        )


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Pick along the last dimension, one entry per index."""
    return values.gather(-1, index[..., None])[..., 0]


def _position(distribution: Tensor, positions: Tensor) -> Tensor:
    """Pick from [B, P, V] the distribution at `positions` [B]."""
    return distribution.gather(1, positions[:, None, None].expand(-1, 1, distribution.shape[2]))[:, 0]


def _draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return [...] int64: the token whose interval of the cumulated weights [..., V] contains the number [...]."""
    possible = weights > 0
    cumulated = torch.where(possible, weights.cumsum(-1), 0.0)
    total = cumulated.amax(-1)
    # Rounding must not reach the total, and must not select a token without weight.
    threshold = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulated > threshold[..., None]).to(torch.int8).argmax(-1)


def _join(drafted: Tensor, num_accepted: Tensor, next_token: Tensor) -> Verification:
    """Lay out the accepted tokens, the token after them, then -1."""
    places = torch.arange(drafted.shape[1] + 1, device=drafted.device)
    token_ids = pad(drafted, (0, 1))
    token_ids = torch.where(places == num_accepted[:, None], next_token[:, None], token_ids)
    token_ids = torch.where(places > num_accepted[:, None], NO_TOKEN, token_ids)
    return Verification(token_ids.to(torch.int32), num_accepted.to(torch.int32))


def verify_greedy(draft: Draft, target: TargetLogits) -> Verification:
    """Keep each row's longest draft prefix that equals the greedy output, and add one token.

    The emitted tokens are the argmax at every position up to and including the first one at which the draft differs.

    Equals `ReferenceVerifier` at temperature 0 for any top-k, top-p and min-p; ties in the logits go to the smallest
    id.  Takes O(B N) memory in addition to the logits, and reads nothing back.
    """
    places = torch.arange(draft.draft_length + 1, device=draft.device)
    lengths = draft.lengths[:, None]
    best = target.logits.argmax(-1)[target.starts[:, None] + torch.minimum(places, lengths)].to(torch.int32)
    kept = (best[:, : draft.draft_length] == draft.token_ids) & (places[: draft.draft_length] < lengths)
    num_accepted = kept.to(torch.int32).cumprod(1).sum(1, dtype=torch.int32)
    token_ids = torch.where(places <= num_accepted[:, None], best, NO_TOKEN)
    return Verification(token_ids, num_accepted)
