"""Table of the token ids of every running request, on the device, where SGLang keeps none.

A prompt is written once, when its request gets a slot; each step appends its emitted tokens from the verifier's output.
So the next step sees the newest tokens however far ahead the host is, and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return host values as a tensor [n] on `device`; on a GPU by one asynchronous copy without a sync."""
    staged = torch.tensor(values, dtype=dtype)
    return staged.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else staged.to(device)


class TokenTable:
    """Token ids by slot.

    Args:
        slots: S, rows.
        length: L, the longest text.
        most_emitted: most tokens that a step emits per request.
        device: the table's device.

    Attributes:
        tokens: [S, L + most_emitted + 1] int32; undefined at and beyond a row's length.
        most_emitted: as above.
    """

    def __init__(self, slots: int, length: int, most_emitted: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots, length + most_emitted + 1, dtype=torch.int32, device=device)
        self.most_emitted = most_emitted
        self._places = torch.arange(most_emitted, device=device)

    def write(self, slot: int, text: npt.NDArray[np.int64]) -> None:
        """Write a request's text [n] in one asynchronous copy."""
        staged = torch.from_numpy(text.astype(np.int32))
        if self.tokens.device.type == "cuda":
            staged = staged.pin_memory()
        self.tokens[slot, : len(text)].copy_(staged, non_blocking=True)

    def append(self, slots: Tensor, lengths: Tensor, emitted: Tensor) -> None:
        """Append the emitted tokens of a step.

        Args:
            slots: [B] int64.
            lengths: [B] int64, of the texts before the step.
            emitted: [B, E] ids; ids beyond a row's count are written too, where the table is undefined anyway.
        """
        positions = lengths[:, None] + self._places[: emitted.shape[1]]
        self.tokens[slots[:, None], positions.clamp_(max=self.tokens.shape[1] - 1)] = emitted.to(self.tokens.dtype)

    def append_one(self, slots: Tensor, lengths: Tensor, emitted: Tensor) -> None:
        """Append one token per row, [B] int32, like `append` but in one operation.

        A row that goes on beyond the longest text does so for a single step, for which the table has a column.
        """
        self.tokens[slots, lengths] = emitted
