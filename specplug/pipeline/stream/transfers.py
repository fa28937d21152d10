"""The choice of `pack` and `unpack` for a device."""

from __future__ import annotations

from typing import Protocol

import torch

from specplug.errors import EngineError
from specplug.pipeline.stream import host_kernels
from specplug.pipeline.stream.buffers import StepBuffers
from specplug.pipeline.stream.tensors import DraftOutputs, EngineRows


class Transfers(Protocol):
    """A module with both transfers; see `specplug.pipeline.stream.reference` for their arguments."""

    def pack(self, buffers: StepBuffers, batch_size: int, rows: EngineRows) -> None:
        """Write the rows' new tokens and counts into `buffers`."""

    def unpack(self, buffers: StepBuffers, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
        """Write the drafts in `buffers` into the engine's tensors."""


def transfers_for(device: torch.device) -> Transfers:
    """Return the transfers between a device and pinned memory.

    These are Triton's kernels on a GPU, and on a CPU where Triton's interpreter is on.  Elsewhere they are the compiled
    functions of `host_kernels`.

    Raises:
        EngineError: the device is a GPU, and Triton is not installed.
    """
    try:
        from specplug.pipeline.stream import kernels
    except ImportError as error:
        if device.type == "cuda":
            raise EngineError.build(
                "cannot draft on the host for a GPU",
                who="specplug",
                found=f"no Triton for {device} ({error})",
                expected="Triton, whose kernels move tokens and drafts without waiting for the GPU",
                remedy="Install it: pip install triton",
            ) from error
        return host_kernels
    return kernels if device.type == "cuda" or kernels.INTERPRETED else host_kernels
