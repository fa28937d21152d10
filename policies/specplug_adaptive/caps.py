"""How far the drafts of requests are worth what their tokens cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.types.plan import Price


class Worthwhile(NamedTuple):
    """The lengths of drafts whose tokens are worth their prices.

    Attributes:
        lengths: [B] int64, at least 1.
        gain: what the tokens beyond them would cost more than they yield, as a share of what the step yields.
        emitted: tokens that the step is expected to emit with these lengths, and with the longest drafts.
    """

    lengths: npt.NDArray[np.int64]
    gain: float
    emitted: tuple[float, float]


def worthwhile(
    rates: npt.NDArray[np.float64], most: int, prices: Sequence[Price], least: npt.NDArray[np.int64] | int = 1
) -> Worthwhile:
    """Return the draft lengths of requests that are worth verifying.

    The token at position j survives with probability rate^j.  The likeliest tokens of the batch come first, and each is
    worth verifying if it survives by the price after those before it.

    Args:
        rates: [B] float64, each request's acceptance rate.
        most: the longest draft.
        prices: as in a plan, in any number.
        least: [B] int64, or of every request: lengths to draft in any case.
    """
    place = np.arange(most)
    survival = rates[:, None] ** (place + 1)
    ordered = np.sort(survival, axis=None)[::-1]
    cost = np.zeros(ordered.size)
    for price in prices:
        cost[price.after :] = price.survival
    count = int(np.count_nonzero(ordered >= cost))  # a prefix, as prices rise and survival falls
    threshold = ordered[count - 1] if count else np.inf
    lengths = np.clip(np.count_nonzero(survival >= threshold, axis=1), np.maximum(least, 1), most)
    kept = place < lengths[:, None]
    emitted, lost = float(rates.size + survival[kept].sum()), float(survival[~kept].sum())
    gain = (float(cost[int(lengths.sum()) :].sum()) - lost) / emitted
    return Worthwhile(lengths, gain, (emitted, emitted + lost))
