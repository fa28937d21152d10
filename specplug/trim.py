"""SurvivalTrimmer, the trim half that most policies share: it keeps the draft tokens most likely to survive."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.types.draft import Draft
from specplug.types.trim import TrimLimits


class SurvivalTrimmer(Trimmer):
    """Admits draft tokens of the whole batch in descending survival probability until the budget is spent.

    Survival never rises along a path, so the admitted tokens are a prefix of each chain and include every ancestor of
    an admitted tree node.  Ties go to the lower column (a parent comes before its children), then to the lower row, so
    the order is the same on every device and rank.  Nothing is read back.
    """

    def __init__(self, context: PluginContext | None = None) -> None:
        """Ignore `context`, which every trimmer is built with."""

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to the budget and the price; an equal draft if neither cuts anything.

        Confidences must lie in [0, 1], as they do after the pipeline's propose phase.
        """
        survival, rank = rank_tokens(draft)
        return draft.keep((rank < limits.token_budget) & (survival >= limits.price))


def rank_tokens(draft: Draft) -> tuple[Tensor, Tensor]:
    """Return each draft token's survival probability, and its rank in the order in which trimmers admit tokens.

    Returns:
        [B, N] float32, the survival probability, which never rises along a path and is 0 beyond the length; and
        [B, N] int64, the rank from 0, with absent tokens last.  For any threshold, the tokens with a lower rank are a
        prefix of each chain and include every ancestor of a tree node.
    """
    survival = draft.survival()
    if draft.parents is None and draft.draft_length:
        survival = survival.cummin(1).values  # a parallel product may rise by a rounding error
    worth = torch.where(draft.mask(), survival, -1.0).T.reshape(-1)  # column by column, which breaks ties
    order = worth.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return survival, rank.reshape(survival.shape[1], survival.shape[0]).T
