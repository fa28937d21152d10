"""The text of every running request, on the device.

SGLang keeps no token ids there.  Prompts are written once, when a request gets its place; what a step emits is written
by the step itself, from the verifier's own output.  So the newest tokens are known to the next step wherever the host
is, and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return host values as a tensor [n]: on a GPU one asynchronous copy, for which nobody waits."""
    staged = torch.tensor(values, dtype=dtype)
    return staged.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else staged.to(device)


class TokenTable:
    """Token ids by slot.

    Args:
        slots: S, rows.
        length: L, the longest text.
        most_emitted: tokens that a step emits per request at most.
        device: where the table lies.

    Attributes:
        tokens: [S, L + most_emitted] int32; undefined at and beyond a row's length.
    """

    def __init__(self, slots: int, length: int, most_emitted: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots, length + most_emitted, dtype=torch.int32, device=device)
        self._places = torch.arange(most_emitted, device=device)

    def write(self, slot: int, text: npt.NDArray[np.int64]) -> None:
        """Write a request's text [n]: one asynchronous copy."""
        staged = torch.from_numpy(text.astype(np.int32))
        if self.tokens.device.type == "cuda":
            staged = staged.pin_memory()
        self.tokens[slot, : len(text)].copy_(staged, non_blocking=True)

    def append(self, slots: Tensor, lengths: Tensor, emitted: Tensor) -> None:
        """Write what a step emitted.

        Args:
            slots: [B] int64.
            lengths: [B] int64, of the texts before the step.
            emitted: [B, E] ids; those beyond a row's own count are written too, where they are undefined anyway.
        """
        allocator = lengths[:, None] + self._places[: emitted.shape[1]]
        self.tokens[slots[:, None], allocator.clamp_(max=self.tokens.shape[1] - 1)] = emitted.to(self.tokens.dtype)
