"""SurvivalTrimmer, the trim half that most policies share: it keeps the draft tokens most likely to survive."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

import torch

from specplug.interfaces import PluginContext, Trimmer
from specplug.trim.ranking import admitted
from specplug.types.draft import Draft
from specplug.types.host_step import HostStep
from specplug.types.trim import TrimLimits


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
        from specplug.trim.admission import host_trim  # numba's start takes time that other devices need not spend

        return host_trim()


def _kernels_for(device: torch.device) -> ModuleType | None:
    """Return the module of the Triton kernel, if it can run on a device: a GPU, or a CPU with Triton's interpreter."""
    if device.type not in ("cpu", "cuda") or not _has_triton():
        return None
    kernels = importlib.import_module("specplug.trim.kernels")
    return kernels if device.type == "cuda" or kernels.INTERPRETED else None


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
