"""DeviceAcceptance: `specplug_crosstok.acceptance.Acceptance` on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug_crosstok.acceptance import FORGET, MIDDLES, NUM_BUCKETS, PRIOR, Floats, bucket_of


class DeviceAcceptance:
    """Tested and accepted tokens by kind and probability; learns like `Acceptance`, from many drafts at once.

    Args:
        num_kinds: kinds of tokens.
        device: where the counts are.
    """

    def __init__(self, num_kinds: int, device: torch.device) -> None:
        self._counts = torch.zeros(num_kinds * NUM_BUCKETS, 2, dtype=torch.float64, device=device)
        self._middles = torch.from_numpy(MIDDLES).to(device)

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

    def counts(self) -> Floats:
        """Return tested and accepted tokens of each kind, [kinds, 2]; waits for the device."""
        found: Floats = self._counts.view(-1, NUM_BUCKETS, 2).sum(1).cpu().numpy()
        return found

    def _places(self, kinds: Tensor, probabilities: Tensor) -> Tensor:
        return kinds * NUM_BUCKETS + bucket_of(probabilities)
