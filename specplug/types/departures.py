"""Counts of lossy verification: how many draft tokens it accepts, and how many of them depart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossyCounts:
    """Counts since start-up for lossy verification.

    Attributes:
        accepted: draft tokens that it accepted.
        departed: the expected number of them that lossless verification would have rejected, given the tokens before.
    """

    accepted: int = 0
    departed: float = 0.0

    @property
    def departure_rate(self) -> float | None:
        """Departed / accepted; None when nothing was accepted."""
        return self.departed / self.accepted if self.accepted else None

    def as_dict(self) -> dict[str, Any]:
        """Return counts and rate, ready for JSON."""
        return {"accepted": self.accepted, "departed": self.departed, "departure_rate": self.departure_rate}

    def __sub__(self, other: LossyCounts) -> LossyCounts:
        return LossyCounts(self.accepted - other.accepted, self.departed - other.departed)


class LossyCounter:
    """Counter of lossy verification; on no device until something is counted."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # accepted, departed

    def add(self, accepted: Tensor, departed: Tensor) -> None:
        """Count rows: draft tokens accepted [B] and departed [B], on the same device.  Reads nothing back."""
        if self._sums is None:
            self._sums = torch.zeros(2, dtype=torch.float64, device=accepted.device)
        self._sums += torch.stack([accepted.sum(dtype=torch.float64), departed.sum(dtype=torch.float64)])

    def read(self) -> LossyCounts:
        """Read the counts back, which on a GPU waits for the steps that are queued."""
        if self._sums is None:
            return LossyCounts()
        accepted, departed = self._sums.tolist()
        return LossyCounts(int(accepted), departed)
