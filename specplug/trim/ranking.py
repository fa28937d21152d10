"""The order in which trimmers admit the draft tokens of a batch: the plain form, in tensor operations."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.draft import Draft
from specplug.types.trim import TrimLimits


def rank_tokens(draft: Draft) -> tuple[Tensor, Tensor]:
    """Return each draft token's survival probability, and its rank in the order in which trimmers admit tokens.

    Tokens are admitted in descending survival.  Ties go to the lower column (a parent comes before its children), then
    to the lower row, so the order is the same on every device and rank.

    Returns:
        [B, N] float32, the survival probability, which never rises along a path and is 0 beyond the length; and
        [B, N] int64, the rank from 0, with absent tokens last.  For any threshold, the tokens with a lower rank are a
        prefix of each chain and include every ancestor of a tree node.
    """
    survival = draft.survival()
    worth = torch.where(draft.mask(), survival, -1.0).T.reshape(-1)  # column by column, which breaks ties
    order = worth.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return survival, rank.reshape(survival.shape[1], survival.shape[0]).T


def admitted(draft: Draft, limits: TrimLimits) -> Tensor:
    """Return the mask, [B, N] bool, of the draft tokens within the budget that are worth their prices.

    It holds none if they do not yield the entry.
    """
    survival, rank = rank_tokens(draft)
    kept = draft.mask() & (rank < most_tokens(survival, limits))
    if not limits.entry:
        return kept
    gain = torch.where(kept, survival, 0.0).sum(dtype=torch.float64) - price_of(kept.sum(), limits)
    return kept & (gain >= limits.entry)


def price_of(count: Tensor, limits: TrimLimits) -> Tensor:
    """Return the sum of the prices of the first `count` tokens in the order of admission, 0-d float64."""
    rises = torch.diff(limits.prices.double(), prepend=limits.prices.new_zeros(1, dtype=torch.float64))
    return (rises * (count - limits.prices_after).clamp(min=0)).sum()


def most_tokens(survival: Tensor, limits: TrimLimits) -> Tensor:
    """Return how many tokens, counted in the order of admission, a token may be among if it is to be admitted.

    It never falls with the survival probability, so the admitted tokens are the first of the order.

    Args:
        survival: survival probabilities, of any shape, float32.
        limits: the budget and the prices.
    """
    below = survival[..., None] < limits.prices
    ends = torch.where(below, limits.prices_after, limits.token_budget)
    return torch.minimum(ends.amin(-1), limits.token_budget) if below.shape[-1] else limits.token_budget
