"""Which proposer drafts for which request: the server's default, or the one that the request names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specplug.types.request import BEGINS, Event, RequestEvent


class Choices:
    """The choice of each of S slots' tenants among P proposers, on the device, and who is chosen at all, on the host.

    Args:
        names: of the proposers, the server's default first.
        max_slots: S.
        device: where batches lie.
    """

    def __init__(self, names: Sequence[str], max_slots: int, device: torch.device) -> None:
        self._index = {name: index for index, name in enumerate(names)}
        self._chosen = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._slots: list[set[int]] = [set() for _ in names]

    def on_event(self, event: Event) -> None:
        """Note what a request chose that comes, and forget it when it leaves."""
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
        """How many requests hold slots."""
        return sum(map(len, self._slots))

    def is_wanted(self, index: int) -> bool:
        """Whether any request may want this proposer's drafts; the default's always."""
        return index == 0 or bool(self._slots[index])

    def limits(self, index: int, slots: Tensor, limits: Tensor) -> Tensor:
        """Return `limits` [B] for the rows that chose this proposer, 0 for the others; `slots` [B] int64."""
        if len(self._slots) == 1:
            return limits
        return torch.where(self._chosen[slots] == index, limits, 0)
