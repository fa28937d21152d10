"""The trim half that most policies share: spend the token budget where draft tokens are likeliest to survive."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.types.draft import Draft


class SurvivalTrimmer(Trimmer):
    """Admits draft tokens of the whole batch in descending survival probability until the budget is spent.

    Survival never rises along a path, so what is admitted is a prefix of each chain and, with every node of a tree, its
    ancestors.  Among equals the lower column comes first (a parent stands before its children), then the lower row:
    one order on every device and every rank.  Nothing is read back.
    """

    def __init__(self, context: PluginContext | None = None) -> None:
        """Need nothing; a context is taken because every trimmer is built with one."""

    def trim(self, draft: Draft, token_budget: Tensor) -> Draft:
        """Return `draft` cut to `token_budget` (0-d int64) tokens; with a budget that suffices, an equal draft.

        Confidences must lie in [0, 1], as they do behind the pipeline's propose phase.
        """
        survival = draft.survival()
        if draft.parents is None and draft.width:
            survival = survival.cummin(1).values  # a parallel product may rise by a rounding error
        return draft.keep(_rank(survival, draft.mask()) < token_budget)


def _rank(survival: Tensor, present: Tensor) -> Tensor:
    """Return [B, N] int64: each token's place in the order of admission; absent tokens come last."""
    worth = torch.where(present, survival, -1.0).T.reshape(-1)  # column by column: the order among equals
    order = worth.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return rank.reshape(survival.shape[1], survival.shape[0]).T
