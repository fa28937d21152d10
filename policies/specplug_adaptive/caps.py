"""Caps of requests: how far each one's drafts are worth what their tokens have to be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specplug.types.plan import Price


def worthwhile_lengths(
    rates: npt.NDArray[np.float64], draft_length: int, prices: Sequence[Price]
) -> npt.NDArray[np.int64]:
    """Return the draft tokens of each request that are worth verifying, [B] int64, from 0 to `draft_length`.

    The token at position j survives with probability rate^j.  The likeliest tokens of the batch come first, and each is
    worth verifying if it survives by the price after those before it.

    Args:
        rates: [B] float64, each request's acceptance rate.
        draft_length: the longest draft.
        prices: as in a plan.
    """
    survival = rates[:, None] ** np.arange(1, draft_length + 1)
    ordered = np.sort(survival, axis=None)[::-1]
    least = np.zeros(ordered.size)
    for price in prices:
        least[price.after :] = price.survival
    count = int(np.count_nonzero(ordered >= least))  # a prefix, as prices rise and survival falls
    if not count:
        return np.zeros(rates.size, np.int64)
    return np.count_nonzero(survival >= ordered[count - 1], axis=1)
