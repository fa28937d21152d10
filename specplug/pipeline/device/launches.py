"""The choice of the kernels of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Launches(NamedTuple):
    """Functions that launch a kernel each; see `specplug.pipeline.device.begin` and `finish` for their arguments."""

    begin: Callable[..., None]
    finish: Callable[..., None]


def launches_for(device: torch.device) -> Launches | None:
    """Return the kernels of a GPU, or of a CPU where Triton's interpreter is on.

    Elsewhere there are none, and the draft stage takes its steps itself: it needs no Triton.
    """
    try:
        from specplug.pipeline.device import begin, finish, layout
    except ImportError:
        return None
    has_kernels = device.type == "cuda" or (device.type == "cpu" and layout.INTERPRETED)
    return Launches(begin.begin, finish.finish) if has_kernels else None
