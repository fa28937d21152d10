"""Rows of a batch, kept from step to step while the same requests hold the same slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specplug.runtime.rows import RowFacts
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.slots import SlotRows
from specplug.types.batch import EngineBatch
from specplug_sglang.verification.table import on_device


class Rows:
    """Rows of B requests.  What lies on the device is copied there once a step drafts.

    Args:
        allocator: slots of the requests that the worker holds.
        reqs: the requests.
        device: device of batches and drafts.
    """

    def __init__(self, allocator: SlotAllocator, reqs: Sequence[Any], device: torch.device) -> None:
        self.facts = RowFacts(allocator, [req.rid for req in reqs])
        self._reqs, self._slots, self._device = list(reqs), allocator.slots, device

    def hold(self, allocator: SlotAllocator, reqs: Sequence[Any]) -> bool:
        """Return whether these are still the rows of `reqs`."""
        return self._reqs == reqs and self.facts.are_current(allocator)

    def view(self, tokens: Tensor, slots: Tensor, lengths: Tensor, vocab_size: int) -> EngineBatch:
        """Describe the batch.

        Args:
            tokens: [S, L] int32, the token table.
            slots: [B] int64, rows in SGLang's request pool.
            lengths: [B], known tokens of each.
            vocab_size: V.
        """
        lengths = lengths.to(torch.int32)
        return EngineBatch(
            slots=slots,
            generations=self.table.generations,
            rows=slots,
            tokens=tokens,
            lengths=lengths,
            sampled=self._all,
            room=self.table.ends - lengths,
            temperature=self.temperature,
            grammar=self.table.grammar,
            vocab_size=vocab_size,
            reset_slots=self._slots.take_resets(),
            barriers=self.facts.barriers,
            request_ids=self.facts.names,
            requests=self.facts.requests,
        )

    @cached_property
    def table(self) -> SlotRows:
        """The slot table's rows."""
        return self._slots.rows(on_device(self.facts.slots, torch.int64, self._device))

    @cached_property
    def temperature(self) -> Tensor:
        """The requests' temperatures, [B] float32."""
        temperatures = [request.temperature for request in self.facts.requests]
        return on_device(temperatures, torch.float32, self._device)

    @cached_property
    def _all(self) -> Tensor:
        """[B] bool, all true."""
        return torch.ones(len(self.facts.slots), dtype=torch.bool, device=self._device)
