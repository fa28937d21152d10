"""SurvivalTrimmer, the trim half that most policies share, and the order in which it admits draft tokens.

The order is written here in tensor operations, for any device.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.types.draft import Draft
from specplug.types.host_step import HostStep
from specplug.types.plan import Price, TrimLimits


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
    """Return survival probabilities [B, N] in which rows that are not known repeat known ones; 1 if none is."""
    known = survival[is_known]
    others = known[np.arange(len(survival)) % len(known)] if len(known) else np.ones_like(survival)
    return np.where(is_known[:, None], survival, others)


class SurvivalTrimmer(Trimmer):
    """Admits draft tokens of the whole batch in descending survival probability until none is worth its price.

    Survival never rises along a path, so the admitted tokens are a prefix of each chain and include every ancestor of
    an admitted tree node.  `rank_tokens` states the order.  Nothing is read back.
    """

    def __init__(self, context: PluginContext | None = None) -> None:
        """Compile the kernel of the context's device, if it is a GPU."""
        if context is not None and context.device.type == "cuda" and (kernels := _kernels_for(context.device)):
            kernels.warm_up(context.device)

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to the budget and the prices; an equal draft if none cuts anything.

        Confidences must lie in [0, 1], as they do after the pipeline's propose phase.
        """
        kernels = _kernels_for(draft.device)
        if kernels is not None and kernels.covers(draft):
            trimmed: Draft = kernels.trim(draft, limits)
            return trimmed
        return draft.keep(admitted(draft, limits))

    def host_trim(self) -> HostStep:
        """Return `trim` as a C function; see `specplug.interfaces.HasHostTrim`."""
        from specplug.trim.survival_on_cpu import (
            host_trim,  # numba's start takes time that other devices need not spend
        )

        return host_trim()


def _kernels_for(device: torch.device) -> ModuleType | None:
    """Return the module of the Triton kernel, if it can run on a device: a GPU, or a CPU with Triton's interpreter."""
    if device.type not in ("cpu", "cuda") or not _has_triton():
        return None
    kernels = importlib.import_module("specplug.trim.survival_on_gpu")
    return kernels if device.type == "cuda" or kernels.INTERPRETED else None


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
