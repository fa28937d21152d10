"""A budget from prices, where the number of verified tokens must be known before the drafts are on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specplug.types.plan import Price


def priced_budget(survival: npt.NDArray[np.floating], prices: Sequence[Price], entry: float = 0.0) -> int:
    """Return how many draft tokens are worth their prices: how many `admitted` keeps without another budget.

    Args:
        survival: survival probabilities of the tokens, in any order, floats.
        prices, entry: the plan's.
    """
    ordered = np.sort(survival, axis=None)[::-1]
    end = ordered.size
    for price in prices:
        # Of the tokens from `after` on, which are in descending order, those below the price end the admission.
        worth = int(np.count_nonzero(ordered >= np.float32(price.survival)))
        end = min(end, max(worth, price.after))
    if not entry:
        return end
    rises = zip(prices, (0.0, *[price.survival for price in prices]), strict=False)
    cost = sum([(price.survival - before) * max(0, end - price.after) for price, before in rises])
    return end if ordered[:end].sum(dtype=np.float64) - cost >= entry else 0


def completed(survival: npt.NDArray[np.floating], is_known: npt.NDArray[np.bool_]) -> npt.NDArray[np.floating]:
    """Return survival probabilities [B, N] in which unknown rows are taken for known ones, in turn; 1 if none is known.

    Args:
        survival: [B, N] floats.
        is_known: [B] bool.
    """
    known = survival[is_known]
    others = known[np.arange(len(survival)) % len(known)] if len(known) else np.ones_like(survival)
    return np.where(is_known[:, None], survival, others)
