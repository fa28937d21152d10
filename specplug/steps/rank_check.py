"""RankCheck: tensor-parallel ranks that each draft compare what their drafts depend on, and their drafts.

    drafts, Proposer.checksums -> [P] int32 -> rank 0's, by a broadcast -> what differs, in host memory -> a later step

Every rank verifies its own drafts.  Drafts that differ give wrong text without an error, so a difference ends the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.interfaces import Proposer
from specplug.types.tensors import checksum

CHECKED_EVERY = 64
"""Steps between two comparisons."""


class RankCheck:
    """Compares checksums of one rank with those of rank 0 every `every` steps.  Nothing waits for the result.

    Args:
        proposers: the rank's proposers, by name.
        rank: its number.
        broadcast: overwrites a contiguous tensor with rank 0's, without waiting; all ranks call it alike.
    """

    def __init__(self, proposers: Mapping[str, Proposer], rank: int, broadcast: Callable[[Tensor], object]) -> None:
        self.every = CHECKED_EVERY
        self._proposers = proposers
        self._rank = rank
        self._broadcast = broadcast
        self._steps = 0
        self._names: list[str] = []
        self._differs = torch.zeros(0, dtype=torch.bool)  # [P] on the device: since the start, by checksum
        self._arrived = self._differs  # the same in host memory, once the copy has arrived

    def after_step(self, slots: Tensor, drafts: Tensor) -> None:
        """Count a step with drafts, and compare if it is time.

        Args:
            slots: [B] int64, of the rows that may draft, at least one.
            drafts: what the engine gets of all rows, contiguous, of 4 or 8 bytes per value.

        Raises:
            EngineError: an earlier comparison found a difference.
        """
        if self._arrived.numpy().any():
            found = [name for name, differs in zip(self._names, self._arrived.tolist(), strict=True) if differs]
            raise EngineError.build(
                "drafts, or what they depend on, differ from rank 0's",
                who=f"tensor-parallel rank {self._rank}",
                found=f"differences in {', '.join(found)}",
                expected="none",
                remedy='Report it; with "draft_ranks": "first" rank 0 drafts for all',
            )
        self._steps += 1
        if self._steps % self.every == 0:
            self._compare(slots, drafts)

    def _compare(self, slots: Tensor, drafts: Tensor) -> None:
        sums = {"drafts": checksum(drafts.view(torch.int32))}
        for name, proposer in self._proposers.items():
            sums |= {f"{name}'s {part}": value for part, value in proposer.checksums(slots).items()}
        own = torch.stack(list(sums.values()))
        if not self._names:
            self._names = list(sums)
            self._differs = torch.zeros_like(own, dtype=torch.bool)
            self._arrived = torch.zeros(len(sums), dtype=torch.bool, pin_memory=own.is_cuda)
        first = own.clone()
        self._broadcast(first)
        self._differs |= own != first
        self._arrived.copy_(self._differs, non_blocking=True)
