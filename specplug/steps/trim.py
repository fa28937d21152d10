"""SurvivalTrimmer, the trim half that most policies share, and its decision in tensor operations, for any device."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Trimmer
from specplug.types.draft import NO_TOKEN
from specplug.types.plan import LEVELS, TrimLimits, cost_table
from specplug.types.step import CostPoint, Draft


def rank_tokens(draft: Draft) -> tuple[Tensor, Tensor]:
    """Return each draft token's level of survival, and its rank in the order in which trimmers admit tokens.

    Tokens are admitted in descending level.  Ties go to the lower column (a parent comes before its children), then to
    the lower row, so the order is the same on every device and rank.

    Returns:
        [B, N] int64, the survival probability in `LEVELS`, rounded down, which never rises along a path; -1 beyond the
        length; and [B, N] int64, the rank from 0, with absent tokens last.  For any threshold, the tokens with a lower
        rank are a prefix of each chain and include every ancestor of a tree node.
    """
    levels = torch.where(draft.mask(), (draft.survival() * LEVELS).long(), -1)
    order = levels.T.reshape(-1).sort(descending=True, stable=True).indices  # column by column, which breaks ties
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return levels, rank.reshape(levels.shape[1], levels.shape[0]).T


def admitted(draft: Draft, limits: TrimLimits) -> Tensor:
    """Return the mask, [B, N] bool, of the draft tokens whose summed survival exceeds their cost by most.

    These are the first n in the order of admission, with the smallest n within the budget that has the greatest gain:
    the sum of the first n levels, less what n draft tokens cost beyond none.
    """
    levels, rank = rank_tokens(draft)
    best_first = levels.reshape(-1).sort(descending=True).values
    number = torch.arange(best_first.numel() + 1, device=levels.device)
    gain = torch.nn.functional.pad(best_first.cumsum(0), (1, 0)) - limits.costs[number.clamp(max=len(limits.costs) - 1)]
    limit = torch.minimum(draft.lengths.sum(), limits.token_budget)
    gain = torch.where(number <= limit, gain, -(1 << 62))
    return rank < torch.where(gain == gain.amax(), number, number.numel()).amin()


def trimmed_chains(draft: Draft, limits: TrimLimits) -> Draft:
    """Return `draft.keep(admitted(draft, limits))` of chains on a CPU, by operations on arrays, a tenth of the time."""
    ids = draft.token_ids.numpy()
    levels_of = draft.confidence.numpy()
    sources = draft.source.numpy()
    is_token = np.arange(ids.shape[1]) < draft.lengths.numpy()[:, None]
    survival = np.multiply.accumulate(np.where(is_token, levels_of, np.float32(0)), 1)
    levels = np.where(is_token, (survival * np.float32(LEVELS)).astype(np.int32), -1)
    best_first = np.sort(levels[is_token])[::-1][: int(limits.token_budget)]
    costs = limits.costs.numpy()
    number = np.arange(1, best_first.size + 1)
    gain = best_first.cumsum(dtype=np.int64) - costs[np.minimum(number, len(costs) - 1)] + costs[0]
    count = int(gain.argmax()) + 1 if gain.size and gain.max() > 0 else 0
    lowest = best_first[count - 1] if count else LEVELS + 1
    kept = levels >= lowest
    surplus = int(kept.sum()) - count
    if surplus:  # of the tokens at the lowest level, the last columns go, and of a column the last rows
        columns, rows = (levels == lowest).T.nonzero()
        kept[rows[-surplus:], columns[-surplus:]] = False
    return replace(
        draft.as_one_hot(),
        token_ids=torch.from_numpy(np.where(kept, ids, np.int32(NO_TOKEN))),
        confidence=torch.from_numpy(np.where(kept, levels_of, np.float32(0))),
        source=torch.from_numpy(np.where(kept, sources, np.int32(-1))),
        lengths=torch.from_numpy(kept.sum(1, dtype=np.int32)),
    )


def best_count(survival: npt.NDArray[np.floating], costs: tuple[CostPoint, ...], budget: int | None = None) -> int:
    """Return how many tokens `admitted` keeps.

    Args:
        survival: survival probabilities of the tokens, in any order, floats.
        costs: the plan's curve.
        budget: the most tokens, if there is a limit.
    """
    levels = np.sort((survival * LEVELS).astype(np.int64), axis=None)[::-1][:budget]
    gain = np.concatenate(([0], levels.cumsum())) - cost_table(costs, levels.size)
    return int(gain.argmax())


def completed(survival: npt.NDArray[np.floating], is_known: npt.NDArray[np.bool_]) -> npt.NDArray[np.floating]:
    """Return survival probabilities [B, N] in which rows that are not known repeat known ones; 1 if none is."""
    known = survival[is_known]
    others = known[np.arange(len(survival)) % len(known)] if len(known) else np.ones_like(survival)
    return np.where(is_known[:, None], survival, others)


class SurvivalTrimmer(Trimmer):
    """Keeps the draft tokens of the whole batch whose summed survival exceeds their cost by most, within the budget.

    `admitted` states the decision.  Nothing is read back.
    """

    def __init__(self, context: PluginContext | None = None) -> None:
        """Compile the kernel of the context's device, if it is a GPU."""
        if context is not None and context.device.type == "cuda" and (kernels := _kernels_for(context.device)):
            draft = Draft.allocate(0, 1, device=context.device)
            kernels.trim(draft, TrimLimits.build(0, device=draft.device))

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Return `draft` cut to the tokens to verify.  Those of level 0 are only kept where a curve falls.

        Confidences must lie in [0, 1], as they do after the pipeline's propose phase.
        """
        kernels = _kernels_for(draft.device)
        if kernels is not None and kernels.covers(draft):
            return kernels.trim(draft, limits)  # type: ignore[no-any-return]
        if draft.device.type == "cpu" and draft.parents is None:
            return trimmed_chains(draft, limits)
        return draft.keep(admitted(draft, limits))


def _kernels_for(device: torch.device) -> ModuleType | None:
    """Return the module of the Triton kernel, if it can run on a device: a GPU, or a CPU with Triton's interpreter."""
    if device.type not in ("cpu", "cuda") or not _has_triton():
        return None
    kernels = importlib.import_module("specplug.steps.kernels.trim_kernel")
    return kernels if device.type == "cuda" or kernels.INTERPRETED else None


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
