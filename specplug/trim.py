"""The trim half that most policies share: spend the token budget where draft tokens are likeliest to survive."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.types.draft import Draft
from specplug.types.trim import TrimLimits


class SurvivalTrimmer(Trimmer):
    """Admits draft tokens of the whole batch in descending survival probability until the budget is spent.

    Survival never rises along a path, so what is admitted is a prefix of each chain and, with every node of a tree, its
    ancestors.  Among equals the lower column comes first (a parent stands before its children), then the lower row:
    one order on every device and every rank.  Nothing is read back.
    """

    def __init__(self, context: PluginContext | None = None) -> None:
        """Need nothing; a context is taken because every trimmer is built with one."""

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to the budget and the price; where neither binds, an equal draft.

        Confidences must lie in [0, 1], as they do behind the pipeline's propose phase.
        """
        survival, rank = rank_tokens(draft)
        return draft.keep((rank < limits.token_budget) & (survival >= limits.price))


def rank_tokens(draft: Draft) -> tuple[Tensor, Tensor]:
    """Return how likely each draft token survives, and its place in the order of admission that every trimmer keeps to.

    Returns:
        [B, N] float32, which never rises along a path, 0 beyond the length; and [B, N] int64, from 0, absent tokens
        last.  Those of a rank below any number are a prefix of each chain, and of trees hold every node's ancestors.
    """
    survival = draft.survival()
    if draft.parents is None and draft.draft_length:
        survival = survival.cummin(1).values  # a parallel product may rise by a rounding error
    worth = torch.where(draft.mask(), survival, -1.0).T.reshape(-1)  # column by column: the order among equals
    order = worth.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return survival, rank.reshape(survival.shape[1], survival.shape[0]).T
