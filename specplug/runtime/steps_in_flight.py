"""StepInFlight: the memory of one step in a stream, from its launch until the drafts have been unpacked; its cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from specplug.match.cpu.records import Record, record
from specplug.pipeline.cpu import host_function as host
from specplug.pipeline.cpu.kernels import NO_PARENTS, Columns
from specplug.pipeline.cpu.trimming import DROP, LEAVE, TRIM, CutControl
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.stream.buffers import StepBuffers
from specplug.runtime.draft_report import DraftReport
from specplug.runtime.slots import NO_CAP, RowFacts, SlotTable
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.host_step import FAILED, SPARE, HostStep, StepArguments, TrimArguments
from specplug.types.plan import StepPlan, cost_table


class StepCut:
    """The cut of one step's drafts, at most S rows of N tokens, by a stage's trim half as a C function.

    Attributes:
        control: what is to be done, and the function's status.
        record: the memory, for `trim`.
    """

    def __init__(self, stage: DraftStage, shape: tuple[int, int]) -> None:
        self._stage, self._step = stage, stage.host_trim
        self._costs = cost_table(())
        self.control = CutControl()
        self._arguments = TrimArguments()
        self.record = record(
            control=self.control.address,
            arguments=self._arguments.address,
            workspace=np.zeros(shape[0] * shape[1] + SPARE, np.float32),
            kept=np.zeros(shape, np.uint8),
            places=np.zeros(shape[1], np.int32),
        )

    def prepare(self, plan: StepPlan, batch_size: int) -> bool:
        """Set what `trim` is to do in a step of B rows; return false if only the stage itself can cut its drafts."""
        control, arguments, step = self.control, self._arguments, self._step
        control.action = LEAVE
        if not self._stage.cuts(batch_size, plan.draft_length, plan):
            return True
        if step is None:
            return False
        control.action = TRIM if self._stage.trimmer_guard.admits_step() else DROP
        control.function, control.status = step.function, FAILED
        arguments.data = step.data
        arguments.token_budget = plan.budget_of(batch_size * plan.draft_length)
        self._costs = cost_table(plan.costs)  # it lives as long as the function may read it
        arguments.costs = self._costs.ctypes.data
        arguments.num_costs = self._costs.size
        return True


class StepInFlight:
    """Arrays that the host, the kernels and the host function of one step share.

    Args:
        stage, slots: the draft stage and the table of slots, on the CPU.
        shared: what all steps share.
        vocab_size: V.
        window: the most new tokens of a row.
        pinned: whether a GPU reads and writes the buffers.

    Attributes:
        buffers: what kernels read and write.
        num_rows: all rows of the engine.
        batch_size: B, the rows that may draft.
        control: its numbers; the host function stores the status there.
        cut: the cut of its drafts.
        report: of its drafts, to be read once it has run.
        argument: the address that the host function takes.
        is_lost: whether a fault of the stream has ended the step, so that its status says nothing.
    """

    def __init__(
        self, stage: DraftStage, slots: SlotTable, shared: host.Shared, vocab_size: int, window: int, *, pinned: bool
    ) -> None:
        runner = stage.runners[0]
        max_slots, draft_length = runner.buffer.token_ids.shape
        trees = runner.buffer.parents is not None
        engine_tokens = stage.engine_tokens
        self.buffers = StepBuffers.allocate(
            max_slots, draft_length, window, pinned=pinned, trees=trees, engine_tokens=engine_tokens
        )
        self._engine_ids = np.zeros((max_slots, engine_tokens), np.int32)
        self.num_rows = self.batch_size = 0
        self._shared = shared
        self._columns, self._table = Columns.allocate(max_slots), np.zeros_like(slots.table.numpy())
        self._columns.caps[:] = NO_CAP
        self._sources = np.zeros((max_slots, draft_length), np.int32)
        self._base_len, self._draft_lengths = np.zeros(max_slots, np.int32), self.buffers.draft_lengths.numpy()
        self._engine_rows, self._upto = np.zeros(max_slots, np.int64), np.zeros(max_slots, np.int32)
        self._first_lengths = np.zeros(max_slots, np.int32)
        self.control = host.StepControl(vocab_size=vocab_size, num_sources=len(stage.sources))
        self._arguments = StepArguments()
        parents = self.buffers.parents
        self._ids = self.buffers.ids.numpy()
        row_counts, token_counts = stage.metrics.tensors()
        self._memory = record(
            **self._columns._asdict(),
            table=self._table,
            stopped=shared.stopped,
            ingested=runner.ingested.numpy(),
            ingested_by=runner.generations.numpy(),
            heads=stage.in_flight.heads.numpy(),
            row_counts=row_counts.numpy(),
            token_counts=token_counts.numpy(),
            ids=self._ids,
            confidence=self.buffers.confidence.numpy(),
            sources=self._sources,
            parents=NO_PARENTS if parents is None else parents.numpy(),
            draft_lengths=self._draft_lengths,
            base_len=self._base_len,
        )
        self.cut = StepCut(stage, (max_slots, draft_length))
        self._facts: RowFacts | None = None
        self.report = DraftReport()
        self._has_caps = self._has_cuts = self.is_lost = False
        self._step = self._record()
        self._argument = host.argument_of(self._step)
        self.argument: int = self._argument.ctypes.data

    def set_rows(
        self,
        facts: RowFacts,
        rows: int,
        slots: SlotTable,
        first_lengths: npt.NDArray[np.int32],
        caps: Mapping[str, int],
        cut_by_grammar: Sequence[int],
    ) -> None:
        """Write down which of the engine's `rows` may draft, and the `caps` of requests.

        The facts of their slots are copied: slots may have other occupants before the step runs.

        Args:
            facts, rows, slots, caps: the rows that may draft, the number of all, the table of slots, and most draft
                tokens by request.
            first_lengths: [S] int32, tokens of each request's first text.
            cut_by_grammar: how many tokens grammars removed from each row's verified draft; none if it is empty.
        """
        if self._facts is not facts:
            slots.flush()
            slots.take_resets()  # the host function goes by generations
            self._facts, self.batch_size, self.num_rows = facts, len(facts.names), rows
            kept = np.arange(rows) if facts.kept is None else np.array(facts.kept, np.int64)
            columns, size, own = self._columns, self.batch_size, np.array(facts.slots, np.int64)
            columns.slots[:size] = columns.table_rows[:size] = own
            columns.temperature[:size] = [request.temperature for request in facts.requests]
            self._table[own], self._first_lengths[:size] = slots.table.numpy()[own], first_lengths[own]
            self._engine_rows[:size] = kept
            draft_rows = self.buffers.draft_rows.numpy()
            draft_rows[:rows] = -1
            draft_rows[kept] = np.arange(size)
        if caps or self._has_caps:
            self._columns.caps[:] = NO_CAP  # also of rows that this batch does not have
            self._columns.caps[: self.batch_size] = [caps.get(name, NO_CAP) for name in facts.names]
            self._has_caps = bool(caps)
        if cut_by_grammar or self._has_cuts:
            self._columns.cut_by_grammar[:] = 0
            self._columns.cut_by_grammar[: len(cut_by_grammar)] = cut_by_grammar
            self._has_cuts = bool(cut_by_grammar)

    def set_flags(
        self,
        step: HostStep,
        draft_length: int,
        *,
        counts_verdicts: bool,
        runs_proposer: bool,
        stores_drafts: bool,
        reports_expected: bool = False,
    ) -> None:
        """Set what the host function is to do: see `StepControl`."""
        longest = self._ids.shape[1] if reports_expected else 0
        self.report = DraftReport(() if self._facts is None else self._facts.names, longest)
        self.is_lost = False
        control = self.control
        control.batch_size, control.draft_length, control.window = self.batch_size, draft_length, self.buffers.packed
        control.longest = max(draft_length, longest)
        control.function, control.data = step
        control.counts_verdicts, control.runs_proposer = counts_verdicts, runs_proposer
        control.stores_drafts = stores_drafts
        control.late = self.report.late.flags.ctypes.data
        control.sums = self.report.sums.ctypes.data if reports_expected else 0
        control.status = FAILED  # until it has run

    def batch(self, vocab_size: int) -> EngineBatch:
        """Return the rows that may draft, once the step has run."""
        return self._columns.batch(self.batch_size, torch.from_numpy(self._shared.texts), vocab_size)

    def draft(self, like: Draft, draft_length: int) -> Draft:
        """Return the drafts of K = `draft_length` tokens, once the step has run; they share the step's memory."""
        buffers = self.buffers
        held = replace(
            like,
            token_ids=buffers.ids,
            confidence=buffers.confidence,
            lengths=buffers.draft_lengths,
            source=torch.from_numpy(self._sources),
            parents=buffers.parents,
            base_len=torch.from_numpy(self._base_len),
        )
        return held.view(self.batch_size, draft_length)

    def lists(self, draft_length: int) -> list[list[int]]:
        """Return the ids of each row's draft of at most K = `draft_length` tokens, once the step has run."""
        ids, lengths = self._ids[: self.batch_size, :draft_length], self._draft_lengths[: self.batch_size]
        rows, counts = ids.tolist(), lengths.tolist()
        if counts.count(draft_length) < len(counts):  # most drafts are as long as they may be
            return [row[:count] for row, count in zip(rows, counts, strict=True)]
        return rows  # type: ignore[no-any-return]

    def _record(self) -> Record:
        """Return what the host function reads and writes."""
        buffers, shared = self.buffers, self._shared
        return record(
            memory=self._memory,
            control=self.control.address,
            arguments=self._arguments.address,
            engine_rows=self._engine_rows,
            first_lengths=self._first_lengths,
            packed_lengths=buffers.lengths.numpy(),
            packed_emitted=buffers.emitted.numpy(),
            packed_verified=buffers.verified.numpy(),
            newest=buffers.newest.numpy(),
            packed_engine_ids=buffers.engine_ids.numpy(),
            engine_ids=self._engine_ids,
            from_engine=buffers.from_engine.numpy(),
            upto=self._upto,
            survivals=np.zeros(self._ids.shape[1], np.float32),
            texts=shared.texts,
            text_lengths=shared.text_lengths,
            text_generations=shared.text_generations,
            progress=shared.progress,
            cut=self.cut.record,
        )
