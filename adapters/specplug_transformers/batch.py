"""Tensors of the rows that decode together, as proposers and verifiers see them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specplug.steps.rows import Rows
from specplug.steps.slots import SlotAllocator
from specplug.types.step import EngineBatch
from specplug.types.verification import SamplingBatch, Uniforms
from specplug.verify.random import uniforms
from specplug_transformers.state import RequestState


class DecodeBatch:
    """B requests that decode together, each of which keeps its slot.

    Constant tensors are copied to the device once; lengths are copied at every step.

    Args:
        states: the requests.
        allocator: their slots.
        tokens: [S, L] int32, the token table, by slot.

    Attributes:
        opted_in: [B] bool, rows whose request names the server's verifier; None if there are none.
        seeded: [B] bool, rows whose request has a seed of its own; None if there are none.
    """

    def __init__(self, states: Sequence[RequestState], allocator: SlotAllocator, tokens: Tensor) -> None:
        self.states = tuple(states)
        self._device = tokens.device
        self._tokens = tokens
        params = [state.params for state in states]
        requests = [state.request for state in states]
        self._rows = Rows(allocator, [request.request_id for request in requests])
        self._seeds = self._column([state.seed for state in states], torch.int64)
        thresholds = [request.options.acceptance_threshold for request in requests]
        self.sampling = SamplingBatch(
            temperature=self._rows.temperature,
            top_k=self._optional([p.top_k for p in params], torch.int64, off=0),
            top_p=self._optional([p.top_p for p in params], torch.float32, off=1),
            min_p=self._optional([p.min_p for p in params], torch.float32, off=0),
            acceptance_threshold=self._optional(thresholds, torch.float32, off=None),
            all_greedy=not any(p.temperature for p in params),
        )
        named = [request.options.verifier is not None for request in requests]
        self.opted_in = self._optional(named, torch.bool, off=False)
        self.seeded = self._optional([p.seed is not None for p in params], torch.bool, off=False)

    def view(self, vocab_size: int, after: Sequence[int] | None = None) -> EngineBatch:
        """Return the current state of the batch, with the slots that began a new generation since the last call.

        Args:
            vocab_size: V.
            after: per row, tokens in the token table after those that the request has kept.
        """
        lengths = [state.length for state in self.states]
        if after is not None:
            lengths = [length + more for length, more in zip(lengths, after, strict=True)]
        slots = self._rows.device_slots
        return self._rows.batch(self._tokens, slots, self._column(lengths, torch.int32), vocab_size)

    def uniforms(self, draft_length: int) -> Uniforms:
        """Return the verifier's random numbers for this step, from each request's seed and length alone.

        Greedy rows use none: if all rows are greedy, the numbers are all 0.
        """
        if self.sampling.all_greedy:
            count = len(self.states)
            accept = torch.zeros(count, draft_length, dtype=torch.float64, device=self._device)
            return Uniforms(accept, torch.zeros(count, draft_length + 1, dtype=torch.float64, device=self._device))
        return uniforms(self._seeds, self._column([state.length for state in self.states], torch.int64), draft_length)

    def _column(self, values: Sequence[object], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _optional(self, values: Sequence[object], dtype: torch.dtype, off: object) -> Tensor | None:
        """Return a column, NaN for None; or None if all its values are `off`."""
        if all(value == off for value in values):
            return None
        return self._column([math.nan if value is None else value for value in values], dtype)
