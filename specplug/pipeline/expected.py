"""What the drafts of a step are expected to yield: sums of their survival probabilities by position."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.draft import Draft

UNIT = 1 << 12
"""The integer for a probability of 1: sums of integers do not depend on their order."""


def survival_sums(draft: Draft, counted: Tensor) -> Tensor:
    """Return [K + 1] int64: the rows that are `counted` [B], and the sum of their survivals by position, in `UNIT`s."""
    survival = (draft.survival() * UNIT + 0.5).long() * counted[:, None].long()
    return torch.cat((counted.long().sum(0, keepdim=True), survival.sum(0)))
