"""KindAcceptance: how often drafted tokens are accepted, by kind and by the draft model's own probability."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specplug.draft_model.model import DraftModel
from specplug.draft_model.pairing import TokenizerPair

SOURCES = ("common ids", "text", "open word")
"""Token-level intersection (TLI), string-level exact match (SLEM), and SLEM's last token, whose word may go on."""

COMMON, TEXT, OPEN_WORD = range(3)

SHARES = (0.5, 0.8, 0.95)
"""The bounds of the levels of the common ids' share of a distribution."""

NUM_LEVELS = len(SHARES) + 1

SAMPLED = len(SOURCES)
"""The first kind of sampled requests' tokens that were not drawn; greedy ones begin with 0.  One for each source."""

DRAWN = slice(2 * len(SOURCES), 2 * len(SOURCES) + NUM_LEVELS)
"""Drawn tokens, by the level of the common ids' share."""

TEXTS = slice(SAMPLED + TEXT, SAMPLED + OPEN_WORD + 1)
"""Sampled requests' tokens of texts."""

NUM_KINDS = DRAWN.stop

NUM_BUCKETS = 12
"""Buckets of probabilities."""

PRIOR = 8.0
"""Tokens that the model's own probability counts for in a bucket."""

FORGET = 4096.0
"""Tokens of a bucket after which the older ones count half."""

_FINEST = 8  # the last bucket begins at 1 - 2 ** -8


class KindAcceptance:
    """Tested and accepted tokens by kind and probability; rates begin with the probabilities.

    Nothing but `status` reads the counts back.
    """

    def __init__(self, device: torch.device, num_kinds: int = NUM_KINDS) -> None:
        self._counts = torch.zeros(num_kinds * NUM_BUCKETS, 2, dtype=torch.float64, device=device)
        middles = (torch.arange(NUM_BUCKETS, dtype=torch.float64) + 0.5) * _FINEST / NUM_BUCKETS
        self._middles = (1.0 - 2.0**-middles).to(device)

    def learn(self, kinds: Tensor, probabilities: Tensor, tested: Tensor, accepted: Tensor) -> None:
        """Learn from drafts of n tokens: kinds and probabilities [B, n], tested and accepted tokens [B]."""
        place = torch.arange(kinds.shape[1], device=kinds.device)
        results = torch.stack([place < tested[:, None], place < torch.minimum(accepted, tested)[:, None]], 2)
        self._counts.index_add_(0, self._places(kinds, probabilities).flatten(), results.double().flatten(0, 1))
        self._counts /= torch.where(self._counts[:, :1] > FORGET, 2.0, 1.0)

    def confidence(self, kinds: Tensor, probabilities: Tensor) -> Tensor:
        """Return the probability that each token is accepted, of the shape of `kinds`."""
        tested, accepted = self._counts[self._places(kinds, probabilities)].unbind(-1)
        return ((accepted + PRIOR * probabilities) / (tested + PRIOR)).clamp(0.0, 1.0)

    def by_bucket(self, kinds: slice, *, joined: bool = False) -> Tensor:
        """Return [kinds, buckets], or [1, buckets] for all joined: the confidence in the middle of each bucket."""
        counts = self._counts.view(-1, NUM_BUCKETS, 2)[kinds]
        tested, accepted = (counts.sum(0, keepdim=True) if joined else counts).unbind(-1)
        return (accepted + PRIOR * self._middles) / (tested + PRIOR)

    def counts(self) -> Tensor:
        """Return tested and accepted tokens of each kind, [kinds, 2], the older ones at less weight."""
        return self._counts.view(-1, NUM_BUCKETS, 2).sum(1)

    def _places(self, kinds: Tensor, probabilities: Tensor) -> Tensor:
        return kinds * NUM_BUCKETS + bucket_of(probabilities)


def bucket_of(probabilities: Tensor) -> Tensor:
    """Return int64 buckets, narrower towards 1, where most tokens of a good draft are."""
    doubt = -torch.log2((1.0 - probabilities).clamp(min=2.0**-_FINEST))
    return (doubt * (NUM_BUCKETS / _FINEST)).long().clamp(0, NUM_BUCKETS - 1)


def kinds_of(sources: Tensor, levels: Tensor, is_drawn: Tensor, is_sampled: Tensor) -> Tensor:
    """Return the kinds of tokens, of the shape of `sources`; see `SAMPLED` and `DRAWN`."""
    return torch.where(is_drawn, DRAWN.start + levels, sources + SAMPLED * is_sampled)


def status_of(model: DraftModel, pair: TokenizerPair, acceptance: KindAcceptance) -> dict[str, Any]:
    """Return the pair, and what its drafts were worth; waits for the device."""
    shared = pair.intersection
    names = [f"{source}, {how}" for how in ("greedy", "sampled") for source in SOURCES]
    names += [f"drawn, share level {level}" for level in range(NUM_LEVELS)]
    return {
        "draft_model": model.path,
        "parameters": model.num_parameters,
        "same_tokenizer": pair.is_same,
        "overlap_of_target_percent": round(shared.of_target, 1),
        "overlap_of_draft_percent": round(shared.of_draft, 1),
        "acceptance": {
            name: {"tested": int(tested), "acceptance_rate": float(accepted / tested)}
            for name, (tested, accepted) in zip(names, acceptance.counts().tolist(), strict=True)
            if tested >= 1
        },
    }
