"""EngineBatch: an engine's batch at one step, also as one proposer sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from specplug.types.request import Request
from specplug.types.tensors import ANY, check_tensor, to_host


@dataclass(frozen=True, slots=True)
class Barrier:
    """A span of a row's tokens that is not text (image or audio placeholders, prompt embeddings): never match it."""

    row: int
    start: int
    stop: int


_INDEX = (torch.int32, torch.int64)
_UNKNOWN = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True, slots=True, eq=False)
class EngineBatch:
    """Views of the engine's own tensors, never copies.  Adapters build one per pipeline step.

    B is the number of rows in batch order, S the number of slots, L the longest context.

    A *slot* is a stable index that a request keeps while it runs; per-request state is indexed by slot.  When a slot is
    reused, its *generation* changes and it appears once in `reset_slots`.

    Attributes:
        slots: [B] int32 or int64, the slot of each row.
        generations: [B] int64, the generation of each row's slot.
        rows: [B] int32 or int64, the row of `tokens` that holds each request's text; equal to `slots` on engines whose
            token table is indexed by slot, a different index on engines that compact their batch.
        tokens: [S, L] int32, prompt and output of each request; entries at and beyond the length are undefined.
        lengths: [B] int32, known tokens per request, including all emitted tokens.
        sampled: [B] bool, false for prefill chunks and padding rows, which need no draft.
        room: [B] int32, tokens that max_tokens and the context length still allow.
        temperature: [B] float32, 0 is greedy.
        grammar: [B] bool, `Request.grammar` of each row.
        vocab_size: draft ids must lie in [0, vocab_size).
        reset_slots: slots that began a new generation since the last step (host).
        barriers: spans that are not text (host).
        request_ids, requests: one per row if the engine has them cheaply on the host; otherwise None.
        is_dummy: true for a profiling or graph-capture step, in which proposers touch no state.
        first: [B] int32, the text position of column 0 of the row's entry in `tokens`, if entries hold only the end of
            the text; None means that every entry starts at the beginning of the text.  Only proposers that declare
            `incremental` receive such batches.  Lengths, barriers and all other positions count from the beginning of
            the text.
        num_new: [B] int32, the number of tokens per row that are new since the proposer last ingested the row's slot;
            in `observe`, the number that the step emitted.  Empty in the engine's own batch: `with_new` sets it.
        engine_ids: [B, G] int32, the draft of the engine's own drafter, which proposers that declare `extends`
            continue, -1 after its end; None if there is none.  It follows the row's text in no other way.
    """

    _PER_ROW: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {
        "slots": _INDEX,
        "generations": (torch.int64,),
        "rows": _INDEX,
        "lengths": (torch.int32,),
        "sampled": (torch.bool,),
        "room": (torch.int32,),
        "temperature": (torch.float32,),
        "grammar": (torch.bool,),
    }

    slots: Tensor
    generations: Tensor
    rows: Tensor
    tokens: Tensor
    lengths: Tensor
    sampled: Tensor
    room: Tensor
    temperature: Tensor
    grammar: Tensor
    vocab_size: int
    reset_slots: tuple[int, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    request_ids: tuple[str, ...] | None = None
    requests: tuple[Request, ...] | None = None
    is_dummy: bool = False
    first: Tensor | None = None
    num_new: Tensor = _UNKNOWN
    engine_ids: Tensor | None = None

    @property
    def batch_size(self) -> int:
        """B, the number of rows."""
        return self.slots.shape[0]

    @property
    def device(self) -> torch.device:
        """The device that drafts are written on."""
        return self.lengths.device

    def limits(self, draft_length: int, caps: Tensor | None = None) -> Tensor:
        """Return [B] int32, the most draft tokens per row: the minimum of `draft_length`, `room - 1` and `caps` [B]."""
        limits = self.room - 1
        if caps is not None:
            limits = torch.minimum(limits, caps.to(limits.dtype))
        return limits.clamp_(min=0, max=draft_length) * self.sampled

    def with_new(self, num_new: Tensor, reset_slots: tuple[int, ...]) -> Self:
        """Return one proposer's view of this batch, with the tokens that are new to it and the resets it has missed."""
        return replace(self, num_new=num_new, reset_slots=reset_slots)

    def _columns(self) -> dict[str, tuple[torch.dtype, ...]]:
        """Return the names and dtypes of the tensors that have an entry per row."""
        optional = {"first": self.first is not None, "num_new": len(self.num_new) > 0 or not self.batch_size}
        return self._PER_ROW | {name: (torch.int32,) for name, is_set in optional.items() if is_set}

    def validate(self) -> None:
        """Raise `ContractError` if a shape or dtype is wrong.  Reads no tensor values, so it is safe on a GPU."""
        for name, dtypes in self._columns().items():
            check_tensor(f"EngineBatch.{name}", getattr(self, name), (self.batch_size,), dtypes)
        check_tensor("EngineBatch.tokens", self.tokens, (ANY, ANY), (torch.int32,))

    def to_host(self, *, newest_only: bool = False) -> Self:
        """Return a snapshot on the CPU that no later engine step changes; see `to_host_with`."""
        return self.to_host_with((), newest_only=newest_only)[0]

    def to_host_with(
        self, others: Sequence[Tensor], *, newest_only: bool = False, window: int = 0
    ) -> tuple[Self, list[Tensor]]:
        """Return a snapshot on the CPU that no later engine step changes, and copies of `others` of the same device.

        The snapshot's token table holds only this batch's rows, in batch order.  With `newest_only` it holds only the
        `num_new` newest tokens of each row, `first` gives their position, and all other entries are undefined.  All of
        it takes one wait for a GPU if no row has more than `window` new tokens, otherwise two.
        """
        names = [name for name in self._columns() if name != "rows"]
        at_once = newest_only and window > 0 and self.tokens.device == self.device
        newest = [self._newest(window)] if at_once else []
        copies = to_host([*[getattr(self, name) for name in names], *others, *newest])
        host: dict[str, Any] = dict(zip(names, copies, strict=False))
        begin = host["lengths"] - host["num_new"] if newest_only else host.get("first")
        held = host["lengths"] if begin is None else host["lengths"] - begin
        num_columns = int(held.max()) if self.batch_size else 0
        if at_once and num_columns <= window:
            texts = copies[-1][:, :num_columns]
        elif newest_only:
            texts = self._newest_of(host["num_new"])
        else:
            texts = self.tokens[:, :num_columns].index_select(0, self.rows.to(self.tokens.device)).to("cpu")
        host |= {"rows": torch.arange(self.batch_size), "tokens": texts}
        snapshot = replace(self, **{**host, "first": begin})
        return snapshot, copies[len(names) : len(names) + len(others)]

    def _newest(self, window: int) -> Tensor:
        """Return [B, window] int32, each row's tokens from its first new one on."""
        columns = self._first_new()[:, None] + torch.arange(window, device=self.tokens.device)
        rows = self.rows.to(self.tokens.device)[:, None]
        return self.tokens[rows, columns.clamp_(max=self.tokens.shape[1] - 1)]

    def _newest_of(self, num_new: Tensor) -> Tensor:
        """Return [B, longest] int32 on the host, each row's `num_new` [B] newest tokens; `num_new` is on the host.

        On the device this takes memory for the new tokens only: a long prompt may be one row of many.
        """
        device = self.tokens.device
        total = int(num_new.sum())
        counts = num_new.to(device, non_blocking=True).long()
        row = torch.repeat_interleave(torch.arange(self.batch_size, device=device), counts, output_size=total)
        place = torch.arange(total, device=device) - (counts.cumsum(0) - counts)[row] + self._first_new()[row]
        flat = self.tokens[self.rows.to(device)[row], place].to("cpu")
        texts = torch.empty(self.batch_size, int(num_new.max()) if self.batch_size else 0, dtype=torch.int32)
        stop = 0
        for text, count in zip(texts, num_new.tolist(), strict=True):
            start = stop
            stop = stop + count
            text[:count] = flat[start:stop]
        return texts

    def _first_new(self) -> Tensor:
        """Return [B] int64 on the token table's device, the column of each row's first new token."""
        begin = self.lengths - self.num_new
        if self.first is not None:
            begin -= self.first
        return begin.to(self.tokens.device).long()
