"""Choices: the proposers that requests choose, by slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specplug.types.request import BEGINS, Event, RequestEvent


class Choices:
    """The proposer that the request in each slot uses (on the device), and the slots of each proposer (on the host).

    A request that takes no drafts has the proposer that it would use otherwise.

    Args:
        names: names of the proposers, the server's default first.
        max_slots: S.
        device: the device of batches.
    """

    def __init__(self, names: Sequence[str], max_slots: int, device: torch.device) -> None:
        self._index = {name: index for index, name in enumerate(names)}
        self._chosen = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._slots: list[set[int]] = [set() for _ in names]
        self._takes_none = torch.zeros(max_slots, dtype=torch.bool, device=device)
        self._without: set[int] = set()  # the slots of requests that take no drafts

    def on_event(self, event: Event) -> None:
        """Record the choice of a request that starts, and remove that of one that ends."""
        if not isinstance(event, RequestEvent):
            return
        for slots in self._slots:
            slots.discard(event.slot)
        self._without.discard(event.slot)
        if event.kind in BEGINS:
            options = event.request.options
            chosen = self._index.get(options.proposer or "", 0)
            self._chosen[event.slot].fill_(chosen)
            self._slots[chosen].add(event.slot)
            self._takes_none[event.slot].fill_(options.cap == 0)
            if options.cap == 0:
                self._without.add(event.slot)

    @property
    def num_requests(self) -> int:
        """Number of requests that hold slots."""
        return sum(map(len, self._slots))

    def is_wanted(self, index: int) -> bool:
        """Return whether any request may want this proposer's drafts; always True for the default."""
        return index == 0 or bool(self._slots[index])

    def takes_none(self, slots: Tensor) -> Tensor | None:
        """Return [B] bool, true for the rows `slots` [B] whose requests take no drafts; None if no request is one."""
        return self._takes_none[slots.long()] if self._without else None

    def limits(self, index: int, slots: Tensor, limits: Tensor) -> Tensor:
        """Return `limits` [B] for the rows that chose this proposer, 0 for the others; `slots` [B] int64."""
        if len(self._slots) == 1:
            return limits
        return torch.where(self._chosen[slots] == index, limits, 0)
