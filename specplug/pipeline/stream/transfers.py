"""`pack` and `unpack`, and the choice of them for a device."""

from __future__ import annotations

from typing import Protocol

import torch

from specplug.errors import EngineError
from specplug.pipeline.stream import host_kernels
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows, StepBuffers


class Transfers(Protocol):
    """A module with both transfers of a step of B rows.

    Neither reads or writes entries of per-row tensors after the first B.
    """

    def pack(self, buffers: StepBuffers, batch_size: int, rows: EngineRows) -> None:
        """Write `lengths`, `emitted`, `verified` and `newest` of the first B rows.

        Args:
            buffers: the step's buffers, which state how many tokens are packed.
            batch_size: B.
            rows: the engine's rows.
        """

    def unpack(self, buffers: StepBuffers, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
        """Write the drafts of the first B rows of the engine, padded with each row's newest token and confidence 0.

        Args:
            buffers: the step's buffers, for drafts of at most K tokens; row b's draft is the one numbered
                `draft_rows[b]`.
            batch_size: B.
            draft_length: most draft tokens of this step, at most K; `draft_lengths` are clamped to it.
            outputs: the engine's tensors, of K columns or fewer.
        """


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
