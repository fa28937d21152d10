"""The order in which trimmers admit the draft tokens of a batch: the plain form, in tensor operations."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.draft import Draft


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
