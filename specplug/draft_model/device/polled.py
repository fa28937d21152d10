"""Polled: numbers of the device that the host learns some steps late, without waiting for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class News(NamedTuple):
    """What has arrived.

    Attributes:
        figures: [F, R] int64.
        sent: the tag that they were sent with.
    """

    figures: npt.NDArray[np.int64]
    sent: int


class Polled:
    """A copy of numbers to the host, at most one at a time.

    Args:
        shape: F and R.
        device: of the numbers.
    """

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self._is_async = device.type == "cuda"
        self._held = torch.zeros(shape, dtype=torch.int64, pin_memory=self._is_async)
        self._event: Any = torch.cuda.Event() if self._is_async else None  # type: ignore[no-untyped-call]
        self._sent: int | None = None

    @property
    def is_free(self) -> bool:
        """False while a copy has not been taken."""
        return self._sent is None

    def send(self, figures: Tensor, tag: int) -> None:
        """Begin to copy `figures` [F, R] int64; the last copy must have been taken."""
        self._held.copy_(figures, non_blocking=True)
        self._sent = tag
        if self._event is not None:
            self._event.record()

    def take(self) -> News | None:
        """Return the numbers that were sent last; None if they are still under way."""
        if self._sent is None or (self._event is not None and not self._event.query()):
            return None
        news, self._sent = News(self._held.numpy().copy(), self._sent), None
        return news
