"""TrimLimits: the bounds to which the trim half of a policy cuts a batch's drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specplug.types.plan import Price
from specplug.types.tensors import to_device


@dataclass(frozen=True, slots=True, eq=False)
class TrimLimits:
    """The bounds of one step, all on the device of the drafts.

    Attributes:
        token_budget: 0-d int64, the most draft tokens of the whole batch; at least 0.
        decoding: [B] bool, rows that emit in the step.
        prices, prices_after: [P] float32 and [P] int64, the `StepPlan.prices`, both ascending.  A token is not worth
            verifying if at least `prices_after[i]` tokens precede it and its survival probability is below `prices[i]`.
        entry: `StepPlan.entry`.  No token is worth verifying if the survival probabilities of those within the budget
            and the prices exceed their prices by less than this in all.
    """

    token_budget: Tensor
    decoding: Tensor
    prices: Tensor
    prices_after: Tensor
    entry: float = 0.0

    @classmethod
    def build(cls, token_budget: int, decoding: Tensor, prices: Sequence[Price] = (), entry: float = 0.0) -> TrimLimits:
        """Move host values to the device of `decoding` [B] bool, without waiting for the device."""
        device = decoding.device
        budget = torch.full((), token_budget, dtype=torch.int64, device=device)
        return cls(budget, decoding, *_moved(tuple(prices), device), entry)


@lru_cache(maxsize=64)
def _moved(prices: tuple[Price, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the fields of prices on a device; plans keep their prices for several steps, and nobody writes to them."""
    after = torch.tensor([price.after for price in prices], dtype=torch.int64)
    survival = torch.tensor([price.survival for price in prices], dtype=torch.float32)
    on_device = to_device([survival, after], device)
    return on_device[0], on_device[1]
