"""Acceptance: how often drafted tokens are accepted, by route and by the draft model's own probability."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
Kinds = npt.NDArray[np.int32]

_FINEST = 8  # the last bucket begins at 1 - 2 ** -8

NUM_BUCKETS = 12
"""Buckets of probabilities."""

PRIOR = 8.0
"""Tokens that the model's own probability counts for in a bucket."""

FORGET = 4096.0
"""Tokens of a bucket after which the older ones count half."""

MIDDLES: Floats = 1.0 - 2.0 ** -((np.arange(NUM_BUCKETS) + 0.5) * _FINEST / NUM_BUCKETS)
"""[NUM_BUCKETS], the probability in the middle of each bucket."""


class Acceptance:
    """Tested and accepted tokens by kind and probability; rates begin with the probabilities.

    Args:
        num_kinds: kinds of tokens, such as those of a route, that are counted apart.
    """

    def __init__(self, num_kinds: int) -> None:
        self._counts = np.zeros((num_kinds, NUM_BUCKETS, 2))  # tested, accepted

    def learn(self, kinds: Kinds, probabilities: Floats, accepted: int) -> None:
        """Learn from the tested tokens of one draft, [n] each: the first `accepted` were accepted, the next was not."""
        results = np.stack([np.ones(len(kinds)), np.arange(len(kinds)) < accepted], 1)
        np.add.at(self._counts, (kinds, _buckets(probabilities)), results)
        self._counts[self._counts[:, :, 0] > FORGET] /= 2

    def confidence(self, kinds: Kinds, probabilities: Floats) -> Floats:
        """Return [n]: the probability that each token is accepted."""
        tested, accepted = np.moveaxis(self._counts[kinds, _buckets(probabilities)], -1, 0)
        confidence: Floats = np.clip((accepted + PRIOR * probabilities) / (tested + PRIOR), 0.0, 1.0)
        return confidence

    def by_bucket(self, kinds: slice, *, joined: bool = False) -> Floats:
        """Return [kinds, buckets], or [1, buckets] for all joined: the confidence in the middle of each bucket."""
        counts = self._counts[kinds]
        tested, accepted = np.moveaxis(counts.sum(0, keepdims=True) if joined else counts, -1, 0)
        confidence: Floats = (accepted + PRIOR * MIDDLES) / (tested + PRIOR)
        return confidence

    def counts(self) -> Floats:
        """Return tested and accepted tokens of each kind, [kinds, 2], the older ones at less weight."""
        found: Floats = self._counts.sum(1)
        return found


def bucket_of(probabilities: Tensor) -> Tensor:
    """Return int64 buckets, narrower towards 1, where most tokens of a good draft are."""
    doubt = -torch.log2((1.0 - probabilities).clamp(min=2.0**-_FINEST))
    return (doubt * (NUM_BUCKETS / _FINEST)).long().clamp(0, NUM_BUCKETS - 1)


def _buckets(probabilities: Floats) -> npt.NDArray[np.int64]:
    """The same for arrays."""
    doubt = -np.log2(np.maximum(1.0 - probabilities, 2.0**-_FINEST))
    buckets: npt.NDArray[np.int64] = np.clip(doubt * (NUM_BUCKETS / _FINEST), 0, NUM_BUCKETS - 1).astype(np.int64)
    return buckets
