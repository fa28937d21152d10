"""Rows: the rows of one batch, on the host and on the device, kept while the same requests have the same slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from specplug.steps.slots import CAP, END, GENERATION, GRAMMAR, NO_CAP, STOP_IDS, SlotAllocator
from specplug.types.batch import Barrier
from specplug.types.request import Request
from specplug.types.step import EngineBatch, StepPlan
from specplug.types.tensors import on_device


class Rows:
    """B rows of a batch, in its order: those of the engine's rows whose requests have a slot.

    What lies on the device of batches is copied there when a step first reads it, and nothing waits for the copy.

    Args:
        allocator: the slots.
        names: request ids of the engine's rows.
        key: what `are_of` compares; by default the names.

    Attributes:
        kept: indices of these rows among the engine's rows; None if all rows are kept.
        names: request id of each row.
        slots: slot of each row.
        requests: request of each row.
        barriers: spans of the rows that are not text.
    """

    def __init__(self, allocator: SlotAllocator, names: Sequence[str], key: Sequence[object] | None = None) -> None:
        self._table = allocator.slots
        self._version = allocator.slots.version
        self._key = list(names if key is None else key)
        kept = [row for row, name in enumerate(names) if name not in allocator.ignored]
        self.kept = None if len(kept) == len(names) else kept
        self.names = tuple(names[row] for row in kept)
        self.slots = [allocator.slot_of(name) for name in self.names]
        occupants = [allocator.slots.occupants[slot] for slot in self.slots]
        self.requests: tuple[Request, ...] = tuple(occupant.request for occupant in occupants)
        self.barriers = tuple(
            Barrier(row, *span) for row, occupant in enumerate(occupants) for span in occupant.barriers
        )

    def are_of(self, key: Sequence[object]) -> bool:
        """Return whether no slot has changed hands since, and the engine's rows are still those of `key`, a list."""
        return self._version == self._table.version and self._key == key

    def batch(
        self,
        tokens: Tensor,
        rows: Tensor,
        lengths: Tensor,
        vocab_size: int,
        *,
        sampled: Tensor | None = None,
        temperature: Tensor | None = None,
        engine_ids: Tensor | None = None,
    ) -> EngineBatch:
        """Describe the batch; it has the resets of slots since the last call.

        The arguments are fields of `EngineBatch`.  By default all rows have sampled, at the requests' temperatures.
        """
        return EngineBatch(
            slots=self.device_slots,
            generations=self.generations,
            rows=rows,
            tokens=tokens,
            lengths=lengths,
            sampled=self._all if sampled is None else sampled,
            room=self.ends - lengths,
            temperature=self.temperature if temperature is None else temperature,
            grammar=self.grammar,
            vocab_size=vocab_size,
            reset_slots=self._table.take_resets(),
            barriers=self.barriers,
            request_ids=self.names,
            requests=self.requests,
            engine_ids=engine_ids,
        )

    def caps_of(self, plan: StepPlan) -> Tensor | None:
        """Return the plan's caps, [B] int32, `NO_CAP` for requests without one; None if it has no caps."""
        if not plan.caps:
            return None
        return self._on_device([plan.caps.get(name, NO_CAP) for name in self.names], torch.int32)

    # -- on the device ---------------------------------------------------------------------------------------------

    @cached_property
    def order(self) -> Tensor:
        """[B] int32, the engine's row of each row."""
        return self._on_device(range(len(self.names)) if self.kept is None else self.kept, torch.int32)

    @cached_property
    def places(self) -> Tensor:
        """[E] int32, the row of each of the engine's E rows, -1 for those that are not kept."""
        if self.kept is None:
            return self.order
        places = {row: place for place, row in enumerate(self.kept)}
        return self._on_device([places.get(row, -1) for row in range(len(self._key))], torch.int32)

    @cached_property
    def device_slots(self) -> Tensor:
        """[B] int64, the slots."""
        return self._on_device(self.slots, torch.int64)

    @cached_property
    def temperature(self) -> Tensor:
        """[B] float32, the requests' temperatures."""
        return self._on_device([request.temperature for request in self.requests], torch.float32)

    @property
    def generations(self) -> Tensor:
        """[B] int64, the slots' generations."""
        return self._facts[:, GENERATION]

    @cached_property
    def ends(self) -> Tensor:
        """[B] int32, maximum length of prompt and output together, in tokens."""
        return self._facts[:, END].int()

    @cached_property
    def caps(self) -> Tensor:
        """[B] int32, most draft tokens per step that each request allows; `NO_CAP` if it sets no limit."""
        return self._facts[:, CAP].int()

    @cached_property
    def limits(self) -> Tensor | None:
        """`caps`; None if no request sets a limit."""
        return None if all(request.options.cap is None for request in self.requests) else self.caps

    @cached_property
    def has_grammar(self) -> bool:
        """Whether any request has a grammar."""
        return any(request.grammar for request in self.requests)

    @cached_property
    def grammar(self) -> Tensor:
        """[B] bool, whether each request has a grammar."""
        return self._facts[:, GRAMMAR].bool()

    @property
    def stop_ids(self) -> Tensor:
        """[B, M] int64, the token ids that end each request, padded with -1."""
        return self._facts[:, STOP_IDS:]

    @cached_property
    def _facts(self) -> Tensor:
        """The slot table's rows, [B, 5 + M] int64."""
        self._table.flush()
        return self._table.table[self.device_slots]

    @cached_property
    def _all(self) -> Tensor:
        return torch.ones(len(self.slots), dtype=torch.bool, device=self._table.table.device)

    def _on_device(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return on_device(values, dtype, self._table.table.device)
