"""Batches that decode a known text, and the arms that draft for them.

A batch's token table holds all of each text from the beginning; only the lengths grow.  After each step, tensor
operations on the device compare the drafts with the text and advance each row by its accepted tokens and one more, so
that no step needs the host, as in an engine that schedules its steps early.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.gpu.texts import Tokens
from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.pipeline.device.columns import launches_for
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.plugins.registry import default_registry
from specplug.runtime.device_steps import DeviceSteps
from specplug.runtime.ends import StopDetector
from specplug.runtime.slots import RowFacts, RunningRequest, SlotAllocator
from specplug.settings.model import Settings
from specplug.types.batch import EngineBatch
from specplug.types.caps import EngineCaps
from specplug.types.plan import StepPlan
from specplug.types.request import Request

HOST_BYTES_PER_TOKEN = 8
"""Host memory of a text's token in one arm: the token table and the prompt."""


class Batch:
    """B texts on the host and on the device; each row begins `context` tokens into its text.

    Attributes:
        texts: [B, L] int32 on the host; texts overlap where the corpus is short.
        table: the same on the device.
        slots: [B] int64, the slot of each row of the engine, on the device, as vLLM's V2 runner and SGLang have them.
        vocab_size: V.
    """

    def __init__(
        self, tokens: Tokens, rows: int, context: int, draft_length: int, steps: int, device: torch.device
    ) -> None:
        self.rows, self.context, self.draft_length, self.device = rows, context, draft_length, device
        length = context + (steps + 2) * (draft_length + 1)
        starts = np.arange(rows) * max(1, tokens.size // rows)
        self.texts = np.stack([tokens.take(np.arange(start, start + length), mode="wrap") for start in starts])
        self.table = torch.from_numpy(self.texts).to(device)
        self.order = list(range(rows - 1, -1, -1))
        self.slots = torch.tensor(self.order, dtype=torch.int64, device=device)
        self.vocab_size = int(tokens.max()) + 1

    @staticmethod
    def bytes_needed(rows: int, context: int) -> tuple[int, int]:
        """Return bytes on the host, and on the device: the table, and a lookup's texts of twice the length."""
        return rows * context * HOST_BYTES_PER_TOKEN, rows * context * 4 * 5


class Arm(ABC):
    """One way to draft for a batch, with the engine's tensors for it.

    Attributes:
        name: as the report shows it.
        out: [B, K] int64, the drafts, by the engine's rows.
        lengths: [B] int32, tokens of each slot.
        emitted: [1] int64, tokens that all rows emitted.
        steps: the number of steps.
    """

    def __init__(self, name: str, batch: Batch) -> None:
        rows, gamma, device = batch.rows, batch.draft_length, batch.device
        self.name, self.batch, self.steps = name, batch, 0
        self.out = torch.full((rows, gamma), -1, dtype=torch.int64, device=device)
        self.confidence = torch.zeros(rows, gamma, device=device)
        self.lengths = torch.full((rows,), batch.context, dtype=torch.int32, device=device)
        self.last = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.num_sampled, self.num_rejected = torch.zeros(2, rows, dtype=torch.int32, device=device)
        self.emitted = torch.zeros(1, dtype=torch.int64, device=device)
        self._slots, self._columns = batch.slots.long(), torch.arange(gamma, device=device)

    def advance(self) -> None:
        """Verify the drafts on the device: accept what the text holds, and emit that and one token more."""
        slots, table = self._slots, self.batch.table
        positions = self.lengths[slots].long()[:, None] + self._columns
        accepted = (self.out == table[slots[:, None], positions]).long().cumprod(1).sum(1)
        self.num_sampled.copy_(accepted + 1)
        self.num_rejected.copy_(self.batch.draft_length - accepted)
        self.lengths[slots] += self.num_sampled
        self.last[slots, 0] = table[slots, self.lengths[slots].long() - 1].long()
        self.emitted += (accepted + 1).sum()
        self.steps += 1

    @abstractmethod
    def draft(self) -> None:
        """Fill `out`; never wait for the device."""


class Plain(Arm):
    """No drafts: a token a step."""

    def draft(self) -> None:
        """Do nothing: no token of a text is -1."""


class Lookup(Arm):
    """Drafts of a shipped proposer between two kernels, or on a CPU without Triton by the draft stage.

    Args:
        finished: responses that it remembers before it drafts, [N] int32 each, the first 64 of them for each row.
    """

    def __init__(self, name: str, batch: Batch, finished: Sequence[torch.Tensor], *, proposer: str = "ngram") -> None:
        super().__init__(name, batch)
        rows, gamma, length, device = batch.rows, batch.draft_length, batch.texts.shape[1], batch.device
        context = PluginContext(
            EngineCaps(gamma), vocab_size=batch.vocab_size, max_slots=rows, max_length=length, device=device
        )
        self._stage = build_draft_stage(Settings(proposer=proposer, policy="fixed"), default_registry(), context)
        self._slot_of: dict[str, int] = {}
        self._allocator = SlotAllocator(rows, device, lambda event: self._stage.on_event(event))
        self._allocator.engine_slot = self._slot_of.__getitem__
        self._remember(finished[: 64 * rows])
        for slot in range(rows):
            self._start(f"r{slot}", slot, batch.texts[slot, : batch.context], length - batch.context)
        self._facts = RowFacts(self._allocator, [f"r{slot}" for slot in batch.order])
        self._engine = EngineRows(batch.slots, self.lengths, batch.table, self.num_sampled, self.num_rejected)
        self._outputs, self._plan = DraftOutputs(self.out, self.confidence), StepPlan(gamma)
        self._heat = torch.zeros(rows, device=device)
        self._steps: DeviceSteps | None = None
        if (launches := launches_for(device)) is not None:
            stops, like = StopDetector(rows, gamma, device), (self._engine, self._outputs, self.last)
            self._steps = DeviceSteps(self._stage, self._allocator.slots, stops, batch.vocab_size, launches, like=like)

    def _start(self, name: str, slot: int, prompt: Tokens, max_tokens: int) -> None:
        self._slot_of[name] = slot
        request = Request(name, len(prompt), max_tokens)
        self._allocator.start(RunningRequest(request, len(prompt) + max_tokens, (), tokens=prompt))

    def _remember(self, finished: Sequence[torch.Tensor]) -> None:
        """Let requests end with these responses, after a prompt of a token."""
        for number, text in enumerate(finished):
            name, size = f"finished {number}", len(text)
            self._start(name, 0, text[:1].numpy(), size)
            self._stage.ingest(self._batch_of(torch.zeros(1, dtype=torch.int64), text[None], torch.tensor([size])))
            self._allocator.finish(name, aborted=False, visible=size)

    def _batch_of(self, slots: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> EngineBatch:
        device, table_of = self.batch.device, self._allocator.slots
        slots, lengths = slots.to(device), lengths.to(device, torch.int32)
        rows = table_of.rows(slots)
        return EngineBatch(
            slots=slots,
            generations=rows.generations,
            rows=slots,
            tokens=table.to(device),
            lengths=lengths,
            sampled=lengths > 0,
            room=rows.ends - lengths,
            temperature=torch.zeros(len(slots), device=device),
            grammar=lengths < 0,
            vocab_size=self.batch.vocab_size,
            reset_slots=table_of.take_resets(),
        )

    def draft(self) -> None:
        """Launch a step."""
        if self._steps is not None:
            self._steps.take(self._facts, self._engine, self._outputs, self.last, self._heat, self._plan)
            return
        batch = self._batch_of(self.batch.slots, self.batch.table, self.lengths[self.batch.slots])
        ids = self._stage.propose(batch, self.batch.draft_length).token_ids.long()
        self.out.copy_(torch.where(ids < 0, self.last[self.batch.slots], ids))

    def faults(self) -> list[str]:
        """Return what went wrong in the steps so far, once they have ended."""
        faults = {name: dict(kinds) for name, kinds in self._stage.metrics.snapshot().faults.items() if kinds}
        return [f"{self.name}: faults {faults}"] * bool(faults)

    def close(self) -> None:
        """Release the stage."""
        self._stage.close()
