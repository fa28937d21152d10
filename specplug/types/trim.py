"""TrimLimits: the bounds to which the trim half of a policy cuts a batch's drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TrimLimits:
    """The bounds of one step, all on the device of the drafts.

    Attributes:
        token_budget: 0-d int64, the most draft tokens of the whole batch; at least 0.
        decoding: [B] bool, rows that emit in the step.
        price: 0-d float32, the `StepPlan.price`; a token with a lower survival probability is not worth verifying.
    """

    token_budget: Tensor
    decoding: Tensor
    price: Tensor

    @classmethod
    def build(cls, token_budget: int, decoding: Tensor, price: float = 0.0) -> TrimLimits:
        """Move host values to the device of `decoding` [B] bool, without waiting for the device."""
        device = decoding.device
        return cls(
            token_budget=torch.full((), token_budget, dtype=torch.int64, device=device),
            decoding=decoding,
            price=torch.full((), price, dtype=torch.float32, device=device),
        )
