"""Tensors of the requests in slots, and of the rows that decode together, as proposers and verifiers see them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specplug.types.step import EngineBatch
from specplug.types.verification import SamplingBatch, Uniforms
from specplug.verify.random import uniforms
from specplug_transformers.state import RequestState


class SlotTokens:
    """Tokens by slot.  Slots are reused, lowest first; each new request begins a new generation of its slot.

    Attributes:
        tokens: [S, L] int32 on the model's device; entries after a request's text are undefined.
        vocab_size: ids are in [0, vocab_size).
    """

    def __init__(self, max_slots: int, max_length: int, vocab_size: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_slots, max_length, dtype=torch.int32, device=device)
        self.vocab_size = vocab_size
        self._free = list(range(max_slots))
        self._generations = [0] * max_slots
        self._reset: list[int] = []

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def take_slot(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Write a request's text into a free slot; return (slot, generation)."""
        slot = heapq.heappop(self._free)
        self._generations[slot] += 1
        self._reset.append(slot)
        self.write(slot, 0, token_ids)
        return slot, self._generations[slot]

    def free_slot(self, slot: int) -> None:
        """Free a slot."""
        heapq.heappush(self._free, slot)

    def take_resets(self) -> tuple[int, ...]:
        """Return the slots that began a new generation since the last call."""
        reset = tuple(self._reset)
        self._reset = []
        return reset

    def write(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Write tokens of one request from position `start`."""
        ids = torch.tensor(token_ids, dtype=torch.int32, device=self.tokens.device)
        self.tokens[slot, start : start + len(token_ids)] = ids


class DecodeBatch:
    """B requests that decode together, each of which keeps its slot.

    Constant tensors are copied to the device once; lengths and room are copied at every step.

    Attributes:
        opted_in: [B] bool, rows whose request names the server's verifier; None if there are none.
        seeded: [B] bool, rows whose request has a seed of its own; None if there are none.
    """

    def __init__(self, states: Sequence[RequestState], table: SlotTokens) -> None:
        self.states = tuple(states)
        self._device = table.tokens.device
        params = [state.params for state in states]
        requests = [state.request for state in states]
        slots = self._column([state.slot for state in states], torch.int64)
        temperature = self._column([p.temperature for p in params], torch.float32)
        empty = self._column([0] * len(states), torch.int32)
        self._view = EngineBatch(
            slots=slots,
            generations=self._column([state.generation for state in states], torch.int64),
            rows=slots,
            tokens=table.tokens,
            lengths=empty,
            sampled=self._column([True] * len(states), torch.bool),
            room=empty,
            temperature=temperature,
            grammar=self._column([request.grammar for request in requests], torch.bool),
            vocab_size=table.vocab_size,
            request_ids=tuple(request.request_id for request in requests),
            requests=tuple(requests),
        )
        self._seeds = self._column([state.seed for state in states], torch.int64)
        thresholds = [request.options.acceptance_threshold for request in requests]
        self.sampling = SamplingBatch(
            temperature=temperature,
            top_k=self._optional([p.top_k for p in params], torch.int64, off=0),
            top_p=self._optional([p.top_p for p in params], torch.float32, off=1),
            min_p=self._optional([p.min_p for p in params], torch.float32, off=0),
            acceptance_threshold=self._optional(thresholds, torch.float32, off=None),
            all_greedy=not any(p.temperature for p in params),
        )
        named = [request.options.verifier is not None for request in requests]
        self.opted_in = self._optional(named, torch.bool, off=False)
        self.seeded = self._optional([p.seed is not None for p in params], torch.bool, off=False)

    def view(self, *, reset_slots: tuple[int, ...] = (), after: Sequence[int] | None = None) -> EngineBatch:
        """Return the current state of the batch.

        Args:
            reset_slots: slots that began a new generation since the last step.
            after: per row, tokens in the token table after those that the request has kept.
        """
        lengths = [state.length for state in self.states]
        if after is not None:
            lengths = [length + more for length, more in zip(lengths, after, strict=True)]
        now = self._column([lengths, [state.room for state in self.states]], torch.int32)
        return replace(self._view, lengths=now[0], room=now[1], reset_slots=reset_slots)

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
