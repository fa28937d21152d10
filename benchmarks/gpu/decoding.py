"""Batches that decode a known text, and the arms that draft for them.

A batch's token table holds all of each text from the beginning; only the lengths grow.  After each step, tensor
operations on the device compare the drafts with the text and advance each row by its accepted tokens and one more, so
that no step needs the host, as in an engine that schedules its steps early.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.gpu.polling import PollingStream
from benchmarks.gpu.scan import LONGEST, SHORTEST, Scan, best_match
from benchmarks.gpu.suffix import Corpus, SuffixDrafts
from benchmarks.gpu.suffix_reference import confidences, find
from benchmarks.gpu.texts import Tokens
from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream.buffers import StepBuffers, transfers_for
from specplug.pipeline.stream.launch import stream_for
from specplug.plugins.registry import default_registry
from specplug.runtime.slots import RowFacts, RunningRequest, SlotAllocator
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.model import Settings
from specplug.types.caps import EngineCaps
from specplug.types.plan import StepPlan
from specplug.types.request import Request

RING_TOKENS = 1 << 20
"""Capacity of a corpus; the responses, their prompts' ends and one place each fit in it."""

HOST_BYTES_PER_TOKEN = 24
"""Host memory of a text's token in one arm: the token table, the n-gram index and the prompt."""


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
        """Return bytes on the host for each arm that drafts there, and on the device for all arms."""
        return rows * context * HOST_BYTES_PER_TOKEN, rows * context * 4


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


class OnDevice(Arm):
    """Drafts by kernels on the device, that a reference beside them can repeat."""

    @abstractmethod
    def equals_reference(self, row: int) -> bool:
        """Return whether a row's last draft is its reference's."""

    def _text(self, row: int) -> torch.Tensor:
        """Return what the row's last draft continues, on the host."""
        slot = self.batch.order[row]
        return torch.from_numpy(self.batch.texts[slot, : int(self.lengths[slot])])

    def _holds(self, row: int, tokens: list[int], text: torch.Tensor) -> bool:
        """Return whether a row's last draft has these tokens, and padding after them."""
        padding = [int(text[-1])] * (self.batch.draft_length - len(tokens))
        return bool(self.out[row].tolist() == tokens + padding)


class Scanned(OnDevice):
    """Drafts by a scan of the texts on the device; see `benchmarks.gpu.scan`."""

    def __init__(self, name: str, batch: Batch) -> None:
        super().__init__(name, batch)
        self._scan = Scan(batch.rows, batch.device)

    def draft(self) -> None:
        """Scan."""
        self._scan.draft(self.batch.slots, self.lengths, self.batch.table, self.out)

    def equals_reference(self, row: int) -> bool:
        """Compare the tokens."""
        text = self._text(row)
        length, end = best_match(text, SHORTEST, LONGEST)
        return self._holds(row, text[end : end + self.batch.draft_length].tolist() if length else [], text)


class Corpora(NamedTuple):
    """A corpus on the device, and one of the same responses on the host, for the reference."""

    device: Corpus
    host: Corpus

    @classmethod
    def of(cls, responses: Sequence[torch.Tensor], device: torch.device) -> Corpora:
        """Return corpora of finished responses."""
        return cls(*(Corpus.of(responses, RING_TOKENS, where) for where in (device, torch.device("cpu"))))


class Suffix(OnDevice):
    """Drafts from the row's own text or finished responses, on the device; see `benchmarks.gpu.suffix`."""

    def __init__(self, name: str, batch: Batch, corpora: Corpora) -> None:
        super().__init__(name, batch)
        self._host = corpora.host
        self._drafts = SuffixDrafts(corpora.device, batch.rows, batch.draft_length)

    def draft(self) -> None:
        """Learn, and draft."""
        rows = self.batch.slots, self.lengths, self.batch.table, self.num_sampled
        self._drafts.draft(*rows, self.out, self.confidence)

    def equals_reference(self, row: int) -> bool:
        """Compare the tokens and, by what was counted, their confidence."""
        text = self._text(row)
        found = find(text, self._host, self.batch.draft_length)
        rates = confidences(self._drafts.counts[found.kind].cpu())
        rates[len(found.tokens) :] = 0
        return self._holds(row, found.tokens, text) and torch.equal(self.confidence[row].cpu(), rates)


class Empty(Arm):
    """Both transfers around a host function that does nothing, `free(NULL)`: the least that a step in a stream takes.

    It has the buffers of one step only, so the device must be waited for after each step.
    """

    def __init__(self, name: str, batch: Batch) -> None:
        super().__init__(name, batch)
        rows, gamma, device = batch.rows, batch.draft_length, batch.device
        self._buffers = StepBuffers.allocate(rows, gamma, gamma + 1, pinned=device.type == "cuda")
        self._transfers, self._stream = transfers_for(device), stream_for(device)
        self._function = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value or 0

    def draft(self) -> None:
        """Launch a step, which fills `out` with each row's last token."""
        batch, rows = self.batch, self.batch.rows
        found = EngineRows(batch.slots, self.lengths, batch.table, self.num_sampled, self.num_rejected)
        self._transfers.pack(self._buffers, rows, found)
        self._stream.launch(self._function, 0)
        outputs = DraftOutputs(self.out, self.confidence)
        self._transfers.unpack(self._buffers, rows, batch.draft_length, outputs)


class Streamed(Arm):
    """Drafts of a shipped proposer, by a host function in the device's stream.

    Args:
        threads: of the proposer; 0 is its own choice.
        proposer: its name.
        polled: let a thread that polls call the host function; by default the driver does.
    """

    def __init__(self, name: str, batch: Batch, *, threads: int, proposer: str = "ngram", polled: bool = False) -> None:
        super().__init__(name, batch)
        length, cpu = batch.texts.shape[1], torch.device("cpu")
        caps = EngineCaps(batch.draft_length)
        context = PluginContext(caps, vocab_size=batch.vocab_size, max_slots=batch.rows, max_length=length, device=cpu)
        settings = Settings(proposer=proposer, policy="fixed", options={proposer: {"threads": threads}})
        stage = build_draft_stage(settings, default_registry(), context)
        self._stage = stage
        slot_of = {f"r{slot}": slot for slot in range(batch.rows)}
        allocator = SlotAllocator(batch.rows, cpu, lambda event: stage.on_event(event))
        allocator.engine_slot = slot_of.__getitem__
        stream = PollingStream() if polled else None
        self._engine = EngineRows(batch.slots, self.lengths, batch.table, self.num_sampled, self.num_rejected)
        self._outputs = DraftOutputs(self.out, self.confidence)
        like = self._engine, self._outputs
        given = stage, allocator.slots, length, batch.vocab_size, batch.device
        self.stream = StreamSteps(*given, like=like, stream=stream)
        for request, slot in slot_of.items():
            prompt = batch.texts[slot, : batch.context]
            described = Request(request, batch.context, length - batch.context)
            allocator.start(RunningRequest(described, length, (), tokens=prompt))
        self._facts = RowFacts(allocator, [f"r{slot}" for slot in batch.order])
        self._plan = StepPlan(batch.draft_length)

    def ready(self) -> None:
        """Wait until all prompts are ingested."""
        self.stream.intake.settle()

    def draft(self) -> None:
        """Launch a step."""
        self.stream.take(self._facts, self._engine, self._plan, self._outputs)

    def faults(self) -> list[str]:
        """Return what went wrong in the steps so far, once they have ended."""
        self.stream.settle()
        self.stream.intake.check_ready()
        found = [f"{self.name}: {self.stream.busy} steps found the proposer busy"] if self.stream.busy else []
        faults = {name: dict(kinds) for name, kinds in self._stage.metrics.snapshot().faults.items() if kinds}
        return found + [f"{self.name}: faults {faults}"] * bool(faults)

    def close(self) -> None:
        """Wait for the steps, and release the stage."""
        self.stream.close()
