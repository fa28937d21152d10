"""Batches that decode a known text, and the arms that draft for them.

A batch's token table holds all of each text from the beginning; only the lengths grow.  After each step, tensor
operations on the device compare the drafts with the text and advance each row by its accepted tokens and one more, so
that no step needs the host, as in an engine that schedules its steps early.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.texts import PROMPT_TOKENS, Tokens
from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.plugins.registry import default_registry
from specplug.settings.model import Settings
from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug.steps.device_steps import DeviceSteps, launches_for
from specplug.steps.rows import Rows
from specplug.steps.slots import RunningRequest, SlotAllocator
from specplug.steps.stops import StopDetector
from specplug.types.caps import EngineCaps
from specplug.types.request import Request
from specplug.types.step import StepPlan


class Batch:
    """B texts on the device; each row begins `context` tokens into its text.

    Attributes:
        length: L, the tokens of each text.
        table: [B, L] int32; texts overlap where the source is short.
        vocab_size: V.
    """

    def __init__(
        self, tokens: Tokens, rows: int, context: int, draft_length: int, steps: int, device: torch.device
    ) -> None:
        self.rows, self.context, self.draft_length, self.device = rows, context, draft_length, device
        self.length = context + (steps + 2) * (draft_length + 1)
        starts = np.arange(rows) * max(1, tokens.size // rows)
        texts = [tokens.take(np.arange(start, start + self.length), mode="wrap") for start in starts]
        self.table = torch.from_numpy(np.stack(texts)).to(device)
        self.vocab_size = int(tokens.max()) + 1

    @staticmethod
    def bytes_needed(rows: int, context: int) -> int:
        """Return bytes on the device: the table, and the texts of two lookups."""
        return 5 * 4 * rows * context


class Arm(ABC):
    """One way to draft for a batch, with the engine's tensors for it.

    Attributes:
        name: as the report shows it.
        slots: [B] int64, the slot of each row of the engine, as vLLM's V2 runner and SGLang have them.
        out: [B, K] int64, the drafts, by the engine's rows.
        lengths: [B] int32, tokens of each slot.
        emitted: [1] int64, tokens that all rows emitted.
        steps: the number of steps.
    """

    def __init__(self, name: str, batch: Batch, order: Sequence[int] | None = None) -> None:
        rows, gamma, device = batch.rows, batch.draft_length, batch.device
        self.name, self.batch, self.steps = name, batch, 0
        self.order = list(range(rows - 1, -1, -1)) if order is None else list(order)
        self.slots = torch.tensor(self.order, dtype=torch.int64, device=device)
        self.out = torch.full((rows, gamma), -1, dtype=torch.int64, device=device)
        self.confidence = torch.zeros(rows, gamma, device=device)
        self.lengths = torch.full((rows,), batch.context, dtype=torch.int32, device=device)
        self.last = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.num_sampled, self.num_rejected = torch.zeros(2, rows, dtype=torch.int32, device=device)
        self.emitted = torch.zeros(1, dtype=torch.int64, device=device)
        self._columns = torch.arange(gamma, device=device)

    def advance(self) -> None:
        """Verify the drafts on the device: accept what the text holds, and emit that and one token more."""
        slots, table = self.slots, self.batch.table
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
    """Drafts of `ngram`, as an engine's adapter lets it take steps; on a CPU the draft stage takes them.

    Args:
        responses: finished responses that it drafts from as well, [N] int32 each.
        order: the slot of each row; by default the last one comes first.
        drafts: if false, the proposer does nothing: the least that a step takes.
    """

    def __init__(
        self,
        name: str,
        batch: Batch,
        responses: Sequence[torch.Tensor] = (),
        order: Sequence[int] | None = None,
        *,
        drafts: bool = True,
    ) -> None:
        super().__init__(name, batch, order)
        device, rows, gamma = batch.device, batch.rows, batch.draft_length
        caps = EngineCaps(gamma)
        longest = max([batch.length, *map(len, responses)])
        context = PluginContext(caps, vocab_size=batch.vocab_size, max_slots=rows, max_length=longest, device=device)
        self.stage = build_draft_stage(Settings(proposer="ngram", policy="fixed"), default_registry(), context)
        self.allocator = SlotAllocator(rows, device, self.stage.on_event)
        slot_of = {f"r{slot}": slot for slot in range(rows)}
        self.allocator.engine_slot = lambda name: slot_of.get(name, 0)
        for number, response in enumerate(responses):
            self._remember(f"finished {number}", response)
        for request, slot in slot_of.items():
            described = Request(request, batch.context, batch.length - batch.context, prompt_digest=str(slot))
            self.allocator.start(RunningRequest(described, batch.length, ()))
        self._facts = Rows(self.allocator, [f"r{slot}" for slot in self.order])
        self._plan = StepPlan(gamma)
        engine, outputs = self._engine(), DraftOutputs(self.out, self.confidence)
        launches, self._steps = launches_for(device), None
        if launches is not None:
            stops = StopDetector(rows, gamma, device)
            like = engine, outputs, self.last
            table = self.allocator.slots
            self._steps = DeviceSteps(self.stage, table, stops, batch.vocab_size, launches, like=like)
        if not drafts:
            self.stage.runners[0].handle.step = lambda *_: None  # type: ignore[method-assign]

    def draft(self) -> None:
        """Take a step."""
        outputs = DraftOutputs(self.out, self.confidence)
        if self._steps is None:
            self._by_stage()
        else:
            self._steps.take(self._facts, self._engine(), outputs, self.last, self.confidence[:, 0], self._plan)

    def state(self) -> dict[str, Any]:
        """Return what the lookup has learnt and remembers, and the drafts by slot."""
        memory = self.stage.runners[0].handle.proposer.steps.state._asdict()  # type: ignore[attr-defined]
        kept = {name: memory[name] for name in ("slots", "chain", "voted", "counts", "ring", "owners", "buckets")}
        return {**kept, "drafts": self.out[self.slots.argsort()], "lengths": self.lengths}

    def faults(self) -> list[str]:
        """Return what went wrong in the steps so far."""
        faults = {name: dict(kinds) for name, kinds in self.stage.metrics.snapshot().faults.items() if kinds}
        return [f"{self.name}: faults {faults}"] * bool(faults)

    def _engine(self) -> EngineTensors:
        return EngineTensors(self.slots, self.lengths, self.batch.table, self.num_sampled, self.num_rejected)

    def _remember(self, name: str, response: torch.Tensor) -> None:
        """Let a request run that emits a response, and finish."""
        size = len(response)
        described = Request(name, PROMPT_TOKENS, size - PROMPT_TOKENS)
        self.allocator.start(RunningRequest(described, size, ()))
        table = response[None].to(self.batch.device)
        slot, length = torch.zeros_like(self.slots[:1]), torch.full_like(self.lengths[:1], size)
        rows = Rows(self.allocator, [name])
        self.stage.ingest(rows.batch(table, slot, length, self.batch.vocab_size))
        self.allocator.finish(name, aborted=False, visible=size)

    def _by_stage(self) -> None:
        lengths = self.lengths[self.slots]
        batch = self._facts.batch(self.batch.table, self.slots, lengths, self.batch.vocab_size)
        draft = self.stage.propose(batch, self.out.shape[1])
        self.out[:] = torch.where(draft.mask(), draft.token_ids.long(), self.last[self.slots])
