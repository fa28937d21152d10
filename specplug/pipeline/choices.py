"""The choice of a proposer per request: the server's default, or the one that the request names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specplug.types.request import BEGINS, Event, RequestEvent


class Choices:
    """The proposer that the request in each slot uses (on the device), and the slots of each proposer (on the host).

    Args:
        names: names of the proposers, the server's default first.
        max_slots: S.
        device: the device of batches.
    """

    def __init__(self, names: Sequence[str], max_slots: int, device: torch.device) -> None:
        self._index = {name: index for index, name in enumerate(names)}
        self._chosen = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._slots: list[set[int]] = [set() for _ in names]

    def on_event(self, event: Event) -> None:
        """Record the choice of a request that starts, and remove that of one that ends."""
        if not isinstance(event, RequestEvent):
            return
        for slots in self._slots:
            slots.discard(event.slot)
        if event.kind in BEGINS:
            chosen = self._index.get(event.request.options.proposer or "", 0)
            self._chosen[event.slot].fill_(chosen)
            self._slots[chosen].add(event.slot)

    @property
    def num_running(self) -> int:
        """Number of requests that hold slots."""
        return sum(map(len, self._slots))

    def is_wanted(self, index: int) -> bool:
        """Return whether any request may want this proposer's drafts; always True for the default."""
        return index == 0 or bool(self._slots[index])

    def limits(self, index: int, slots: Tensor, limits: Tensor) -> Tensor:
        """Return `limits` [B] for the rows that chose this proposer, 0 for the others; `slots` [B] int64."""
        if len(self._slots) == 1:
            return limits
        return torch.where(self._chosen[slots] == index, limits, 0)
