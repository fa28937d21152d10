"""StreamSteps: compiled steps of a draft stage whose proposer is on the host, in the stream of an engine's device.

A step is three launches: `pack`, a host function and `unpack`; see `specplug.pipeline.stream`.  Nothing waits for them.
On a CPU the host function is called at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from specplug.errors import ContractError
from specplug.faults import FaultGuard
from specplug.interfaces import HasHostStep
from specplug.pipeline.cpu import host_function as host
from specplug.pipeline.cpu.trimming import TRIM
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream.buffers import Transfers, transfers_for
from specplug.pipeline.stream.launch import HostFunctionStream, Ring, stream_for
from specplug.runtime.draft_report import DraftReport
from specplug.runtime.first_step import take_first
from specplug.runtime.intake import Intake
from specplug.runtime.slots import RowFacts, SlotTable
from specplug.runtime.steps_in_flight import StepInFlight
from specplug.types.batch import EngineBatch
from specplug.types.caps import Distribution
from specplug.types.draft import Draft
from specplug.types.host_step import BUSY, OK
from specplug.types.plan import StepPlan

AT_START = 5
"""Steps whose memory is allocated at start-up: pinning memory can stall a GPU.

Engines have two steps in flight.  Where the batch changes SGLang takes two of these for one of the engine's, a report
and a draft, and the memory of the one before may not be free yet.
"""

MOST_MISSED = 240
"""Most tokens of a row that steps without drafts may leave to a later step, whose memory has room for them.

With drafts of 15 tokens that is a kilobyte for each row and step.
"""

PATIENCE, TRIED_EVERY = 2, 16
"""Steps in a row without any of the engine's tokens in the drafts, after which its drafter drafts one token only, and
the steps after which it drafts all once more."""

_ABANDONED: list[StreamSteps] = []
"""Steps that failed to start: their streams may still write to their memory."""


class StreamSteps:
    """Takes the steps of a draft stage in an engine's stream.

    Args:
        stage: a stage on the CPU for which `applies` is true; from now on it is used through this object only.
        slots: the table of slots, on the CPU.
        max_length: L, the most tokens of a request.
        vocab_size: V.
        device: the engine's device.
        like: rows and outputs with the dtypes of all steps, for which kernels are compiled at start-up; their sizes do
            not matter.
        stream, transfers: what a step is launched with; by default what fits the device.
        on_thread: take requests in on a thread, as is due unless the stream is a CPU's.

    Attributes:
        intake: receives the stage's events.
        busy: the number of steps whose proposer was busy with a request's beginning or end, and did not draft.
        may_report: whether steps can report what drafts are expected to yield: not where the proposer continues the
            engine's own drafts, which are as long as planned.
    """

    def __init__(
        self,
        stage: DraftStage,
        slots: SlotTable,
        max_length: int,
        vocab_size: int,
        device: torch.device,
        *,
        like: tuple[EngineRows, DraftOutputs],
        stream: HostFunctionStream | None = None,
        transfers: Transfers | None = None,
        on_thread: bool | None = None,
    ) -> None:
        self._stage, self._slots, self._runner = stage, slots, stage.runners[0]
        self._pinned, self._vocab_size = device.type == "cuda", vocab_size
        self._stream, self._transfers = stream or stream_for(device), transfers or transfers_for(device)
        max_slots, self._draft_length = self._runner.buffer.token_ids.shape
        self._shared = host.Shared.allocate(max_slots, max_length)
        on_thread = device.type != "cpu" if on_thread is None else on_thread
        self.intake = Intake(self._runner, slots, self._shared.texts, self._shared.progress, on_thread=on_thread)
        self._runner.handle = self.intake
        proposer = self._runner.handle.proposer
        assert isinstance(proposer, HasHostStep)
        self._step = proposer.host_step()
        self._guard = FaultGuard("stream", sink=stage.metrics.fault)
        self._ring = Ring(self._new_step, self._finish)
        self._function, self.busy = host.host_function(), 0
        self.may_report = not stage.engine_tokens
        self._missed = np.zeros(max_slots, np.int64)  # by slot, tokens of steps that were not launched
        self._has_missed = False
        self._unused = 0  # steps in a row whose drafts held none of the engine's tokens
        self._rows: tuple[RowFacts, npt.NDArray[np.int64]] | None = None
        self._start(like)

    @staticmethod
    def applies(stage: DraftStage) -> bool:
        """Return whether the steps of a stage can be taken so: one proposer with a host step, nothing that observes."""
        (first, *others) = stage.runners
        return (
            isinstance(first.handle.proposer, HasHostStep)
            and not others
            and not stage.has_observers
            and stage.distribution is Distribution.ONE_HOT
        )

    def skip(self, facts: RowFacts) -> bool:
        """Note a step without drafts, each of whose rows emits at most one token; return whether it may be left out.

        Nothing is launched for most such steps.  Every `MOST_MISSED` steps one must be taken like any other, with a
        draft length of 0.  The proposer ingests in it what it has missed, so that no backlog grows for ever.
        """
        own = self._slots_of(facts)
        if int(self._missed[own].max(initial=0)) >= MOST_MISSED:
            return False
        self._missed[own] += 1
        self._has_missed = True
        return True

    def take(
        self,
        facts: RowFacts,
        engine: EngineRows,
        plan: StepPlan,
        outputs: DraftOutputs,
        *,
        reports_expected: bool = False,
    ) -> DraftReport:
        """Report the verified step of a batch, and draft for its next one; return a report of the drafts.

        In a step that fails, all rows are late, and all drafts are zeros.

        Args:
            facts: the rows that may draft; pass the same object while the same requests hold the same slots.
            engine: the engine's rows.
            plan: the plan for the drafts.
            outputs: where the drafts go, [B, K].
            reports_expected: see `launch`.
        """
        report: DraftReport | None = None

        def step() -> None:
            nonlocal report
            launched = self.launch(facts, engine, plan, reports_expected=reports_expected)
            self.unpack(launched, plan.draft_length, outputs)
            report = launched.report

        if self.attempt(facts, step) and report is not None:
            return report
        outputs.ids.zero_()
        for tensor in (outputs.confidence, outputs.from_engine):
            if tensor is not None:
                tensor.zero_()
        report = DraftReport(facts.names)
        report.late.flags[:] = 1
        return report

    def attempt(self, facts: RowFacts, step: Callable[[], None]) -> bool:
        """Run `step`, which takes a step of these rows, and contain its faults; return whether it succeeded.

        What the rows have emitted is left to their next step.  After repeated faults nothing is run for a while.
        """
        if self._guard.admits_step() and self._guard.step(step):
            return True
        for failed in self._ring.taken:
            failed.is_lost = True
            self._guard.call(partial(self.drop, failed))
        self._missed[self._slots_of(facts)] = MOST_MISSED
        self._has_missed = True
        return False

    def launch(
        self,
        facts: RowFacts,
        engine: EngineRows,
        plan: StepPlan,
        *,
        reports: bool = True,
        reports_expected: bool = False,
        cut_by_grammar: Sequence[int] = (),
    ) -> StepInFlight:
        """Start a step, which ends with `unpack` or `drop`; call this, and what ends it, within `attempt`.

        Args:
            facts, engine, plan: as in `take`.
            reports: whether to count what the rows emitted, and the verdict on their drafts; otherwise the caller has
                counted one token of each row.
            reports_expected: if the step `may_report`, let the proposer draft as many tokens as the engine may verify,
                for `DraftReport.expected`; what exceeds the plan is cut before anything else sees it.
            cut_by_grammar: by row, the tokens that grammars removed from the verified drafts; none if it is empty.
        """
        step, rows = self._ring.take(), engine.idx_mapping.shape[0]
        step.set_rows(facts, rows, self._slots, self.intake.first_lengths, plan.caps, cut_by_grammar)
        missed = self._take_missed(facts) if self._has_missed else 0
        step.buffers.packed = self._draft_length + 1 + missed
        self._runner.guard.call(self.intake.update)
        waits = not step.cut.prepare(plan, step.batch_size)
        reports_expected = reports_expected and self.may_report
        admits = (plan.draft_length > 0 or reports_expected or missed >= MOST_MISSED) and self._runner.is_ready(())
        step.set_flags(
            self._step,
            plan.draft_length,
            counts_verdicts=reports,
            runs_proposer=admits,
            stores_drafts=not waits,
            reports_expected=reports_expected,
        )
        self._transfers.pack(step.buffers, rows, engine)
        self._stream.launch(self._function, step.argument)
        self.intake.launched += 1
        if waits:
            self._cut(step, plan)
        self._stage.in_flight.is_empty = False
        return step

    def drafts(self, step: StepInFlight, draft_length: int) -> tuple[EngineBatch, Draft]:
        """Wait for a step's drafts of at most K = `draft_length` tokens; return them and their batch, on the CPU.

        They share the step's memory, so that `unpack` hands on what is written to them.
        """
        self._stream.mark().wait()
        return step.batch(self._vocab_size), step.draft(self._runner.buffer, draft_length)

    def longest(self, step: StepInFlight) -> int:
        """Wait for a step's drafts; return the tokens of the longest."""
        self._stream.mark().wait()
        return max(step.buffers.draft_lengths[: step.batch_size].tolist(), default=0)

    def unpack(self, step: StepInFlight, draft_length: int, outputs: DraftOutputs) -> None:
        """End a step: hand its drafts of at most K = `draft_length` tokens to the engine."""
        self._transfers.unpack(step.buffers, step.num_rows, draft_length, outputs)
        self.drop(step)

    def drop(self, step: StepInFlight) -> None:
        """End a step without its drafts."""
        self._ring.give_back(step, self._stream.mark())

    def engine_tokens(self) -> int:
        """Return how many tokens the engine's own drafter should draft in the next step.

        The first one costs no pass of its own: the pass that drafts it also keeps the drafter's key-value cache in
        step.  The others are left out while lookup's drafts take their place.
        """
        self._ring.collect()
        is_idle = self._unused >= PATIENCE and self._unused % TRIED_EVERY
        return min(1, self._stage.engine_tokens) if is_idle else self._stage.engine_tokens

    def settle(self) -> None:
        """Wait until all steps and events have ended; for tests, and before the end."""
        self._ring.collect(waits=True)
        self.intake.settle()

    def close(self) -> None:
        """Wait until all steps have ended, and release the stage."""
        self._ring.collect(waits=True)
        self._stage.close()

    def _start(self, like: tuple[EngineRows, DraftOutputs]) -> None:
        """Allocate the memory of the first steps, and take a dummy with one of them; see `first_step`."""
        steps = [self._ring.take() for _ in range(AT_START)]
        try:
            take_first(steps[0], like, self._transfers, self._stream, self._function)
        except BaseException:
            _ABANDONED.append(self)
            raise
        self.intake.launched += 1
        for step in steps:
            self.drop(step)

    def _take_missed(self, facts: RowFacts) -> int:
        """Return the most tokens that steps without drafts have left of a row; the step to launch takes them."""
        own = self._slots_of(facts)
        most = int(self._missed[own].max(initial=0))
        self._missed[own] = 0
        self._has_missed = bool(self._missed.any())
        return most

    def _slots_of(self, facts: RowFacts) -> npt.NDArray[np.int64]:
        """Return the slots of rows, [B]."""
        if self._rows is None or self._rows[0] is not facts:
            self._rows = facts, np.array(facts.slots, np.int64)
        return self._rows[1]

    def _new_step(self) -> StepInFlight:
        window = self._draft_length + 1 + MOST_MISSED
        return StepInFlight(self._stage, self._slots, self._shared, self._vocab_size, window, pinned=self._pinned)

    def _cut(self, step: StepInFlight, plan: StepPlan) -> None:
        """Wait for the drafts and let the stage cut them: its trim half is Python."""
        batch, draft = self.drafts(step, plan.draft_length)
        cut = self._stage.trimmed(batch, draft, plan)
        self._stage.in_flight.put(batch, cut, step.batch_size)
        if cut is not draft:
            draft.copy_(cut)

    def _finish(self, step: StepInFlight) -> None:
        """Report the status of a step that has ended to the circuit breakers."""
        if step.is_lost:
            return
        if step.cut.control.action == TRIM:
            self._stage.trimmer_guard.step(partial(_raise_if_failed, "host trim", step.cut.control.status))
        drafted = step.batch_size and step.control.draft_length
        if drafted and self._stage.engine_tokens:
            self._unused = 0 if step.buffers.from_engine[: step.batch_size].any() else self._unused + 1
        status = step.control.status
        if status == BUSY:
            self.busy += 1
        else:
            self._runner.guard.step(partial(_raise_if_failed, "host step", status))


def _raise_if_failed(what: str, status: int) -> None:
    if status == host.MALFORMED:
        raise ContractError.build("malformed draft", expected="ids in the vocabulary, lengths within the limits")
    if status != OK:
        raise RuntimeError(f"its {what} returned {status}")
