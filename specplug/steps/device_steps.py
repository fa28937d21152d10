"""DeviceSteps: steps of a draft stage on an engine's device, in kernels around its proposer's or within these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.launching import Around, Number, RowWork, record_launches
from specplug.steps.device_step import DeviceStep, DraftOutputs, EngineTensors
from specplug.steps.draft_buffers import shift_sources
from specplug.steps.draft_report import NO_DRAFTS, DraftReport, engine_tokens_after, may_report, survival_sums
from specplug.steps.draft_stage import DraftStage
from specplug.steps.kernels.columns import (
    COUNTED,
    KNOWN,
    LIMITS,
    NUM_NEW,
    RECORDS,
    ROWS,
    STEP,
    DeviceColumns,
    DeviceState,
    DraftSums,
)
from specplug.steps.repeated_launches import Repeated
from specplug.steps.rows import Rows
from specplug.steps.sanitize import sanitize
from specplug.steps.slots import NO_CAP, SlotTable
from specplug.steps.stops import StopDetector
from specplug.types.caps import Distribution
from specplug.types.step import NO_SPECULATION, Draft, EngineBatch, StepPlan

MAX_VIEWS = 64
"""Views of the draft buffer that are kept."""


class Launches(NamedTuple):
    """Functions that return what a kernel does; see `specplug.steps.kernels.launches` for their arguments."""

    begin: Callable[..., RowWork]
    finish: Callable[..., RowWork]


def launches_for(device: torch.device) -> Launches | None:
    """Return the kernels of a GPU, or of a CPU where Triton's interpreter is on.

    Elsewhere there are none, and the draft stage takes its steps itself: it needs no Triton.
    """
    try:
        from specplug.steps.kernels import launches as kernels
    except ImportError:
        return None
    has_kernels = device.type == "cuda" or (device.type == "cpu" and kernels.INTERPRETED)
    return Launches(kernels.begin, kernels.finish) if has_kernels else None


class DeviceSteps:
    """Takes steps of a `DraftStage`, whose state it shares, so that either may take any step.

    A step launches a kernel, what the proposer launches, and another kernel, or all in the proposer's own; while a
    batch stays as it is, it makes the launches of the step before again.  Nothing is read back, and nothing is copied
    to the device unless the batch has changed or the policy caps requests.

    Args:
        stage: a stage for which `applies` is true.
        slots: the table of slots.
        stops: the detector of stops.
        vocab_size: V.
        launches: the kernels of the stage's device.
        like: rows, outputs and newest tokens of the types that steps have, for which the kernels are compiled.

    Attributes:
        report: of the newest step's drafts; `NO_DRAFTS` unless the step reports what they are expected to yield.
        may_report: whether steps can do so; see `specplug.steps.draft_report.may_report`.
    """

    def __init__(
        self,
        stage: DraftStage,
        slots: SlotTable,
        stops: StopDetector,
        vocab_size: int,
        launches: Launches,
        *,
        like: tuple[EngineTensors, DraftOutputs, Tensor],
    ) -> None:
        self._stage = stage
        self._runner = stage.runners[0]
        self._slots = slots
        self._vocab_size = vocab_size
        self._launches = launches
        around = getattr(self._runner.handle.proposer, "around", None)
        self._around = around if isinstance(around, Around) else None
        self._state = DeviceState.of(stage, slots.table, stops.stopped)
        self._columns = DeviceColumns.allocate(stage)
        self._all_rows = torch.arange(slots.table.shape[0], dtype=torch.int32, device=slots.table.device)
        self._no_caps = torch.full_like(self._all_rows, NO_CAP)
        self._newest: tuple[Rows, Tensor] | None = None  # rows and texts of the newest step, which are described here
        self._batch: EngineBatch  # these rows, without resets; its tensors are those of the columns
        self._for_proposer: EngineBatch  # the same for the proposer
        self._views: dict[tuple[int, ...], Draft] = {}
        self._sums = DraftSums.allocate(stage)
        self._records = self._sums.records.numpy()
        self._recorded = self._read = 0  # steps with a record, and those of them whose record has been read
        self._again: dict[bool, Repeated | None] = {}
        self._unused = 0  # steps in a row whose drafts held none of the engine's tokens
        self.report = NO_DRAFTS
        self.may_report = may_report(stage)
        self._warm_up(*like)

    @staticmethod
    def applies(stage: DraftStage) -> bool:
        """Return whether the steps of a stage can be taken so: one proposer, of chains, that states no probabilities.

        The engine takes the logits that it states from the drafts, before temperature.
        """
        first, *others = stage.runners
        no_trace = stage.tracer is None  # a trace tells of steps what only the stage itself knows
        return no_trace and not others and first.buffer.parents is None and stage.distribution is not Distribution.PROBS

    def take(
        self,
        rows: Rows,
        engine: EngineTensors,
        outputs: DraftOutputs,
        last_sampled: Tensor,
        temperature: Tensor,
        plan: StepPlan,
        *,
        reports: bool = True,
        reports_expected: bool = False,
    ) -> Draft:
        """Report the verified step of a batch, and draft for its next one.

        Args:
            rows: the rows that may draft; pass the same object while the same requests hold the same slots.
            engine: the engine's rows.
            outputs: where ids and confidences go, [B, K] int64 and float32, and how many of the first tokens are the
                engine's; K is 0 for an engine that takes the result.
            last_sampled: [S] or [S, 1] int64, each slot's newest token, which pads its draft.
            temperature: float32, [S] by slot, or [B] by the engine's row if its lengths are.
            plan: the plan for the drafts.
            reports: whether the verified step is counted and learnt from; if not, the host has counted it.
            reports_expected: if steps `may_report`, let the proposer draft as many tokens as the engine may verify, for
                `report`; what exceeds the plan is cut before anything else sees it.

        Returns:
            The drafts of the rows that may draft, [B, plan.draft_length].  The next step overwrites them.
        """
        inputs = *engine[:5], engine.engine_ids, temperature, last_sampled, *outputs
        key = rows, plan, reports, reports_expected, engine.lengths_by_row, engine.num_uncounted
        again = self._again.get(reports_expected)
        if again is not None and again.fits(key, inputs) and self._runner.may_repeat():
            step = again.step
            self._recorded += step.has_record
            again.launch(inputs, self._recorded * step.has_record)
        else:
            with record_launches() as launches:
                step = DeviceStep(engine, outputs, last_sampled, temperature, plan, reports)
                self._take(rows, step, reports_expected and self.may_report)
            self._again[reports_expected] = Repeated(key, launches, inputs, step) if step.only_launched else None
        self.report = DraftReport(self._records[self._recorded % RECORDS, 1:]) if step.is_reported else NO_DRAFTS
        return step.draft

    @torch.inference_mode()
    def _take(self, rows: Rows, step: DeviceStep, may_exceed: bool) -> None:
        """Take a step, which may draft more than is planned, for its report."""
        self._slots.flush()
        self._describe(rows, step.engine.all_token_ids)
        step.order = self._all_rows if rows.kept is None else rows.order
        step.places = self._all_rows if rows.kept is None else rows.places
        size = len(rows.names)
        is_reported = step.is_reported = may_exceed and size > 0
        draft_length = self._runner.buffer.draft_length if is_reported else step.plan.draft_length
        has_record = is_reported or (size * draft_length > 0 and self._stage.engine_tokens > 0)
        step.has_record = has_record
        caps = rows.caps_of(step.plan)
        step.caps = self._no_caps if caps is None else caps
        step.draft = self._view(size, draft_length)
        if step.draft.drawn is not None:
            step.draft.drawn.fill_(True)
        if size:
            self._draft(step)
        if not (step.is_finished and step.has_drafted):
            self._finish(step, has_drafted=step.has_drafted).launch()
        self._recorded += has_record and (step.has_drafted or step.is_finished)
        step.is_reported = is_reported and step.has_drafted
        step.has_record = has_record and step.has_drafted
        step.draft = self._view(size, step.plan.draft_length)
        if step.draft.drawn is not None and rows.has_grammar:
            step.draft.as_one_hot(rows.grammar)  # the engine cuts these rows depending on their tokens

    def _describe(self, rows: Rows, texts: Tensor) -> None:
        """Describe the batch of a step, unless it is that of the step before."""
        if self._newest is not None and self._newest[0] is rows and self._newest[1] is texts:
            return
        self._newest = rows, texts
        self._batch = self._columns.batch(rows, texts, self._vocab_size)
        self._for_proposer = self._batch.with_new(self._columns.counts[NUM_NEW, : len(rows.names)], ())

    def _draft(self, step: DeviceStep) -> None:
        """Begin a step, and draft; the proposer's own kernels begin and finish it where that can be."""
        around = self._around or Around()
        around.begin = self._begin(step)
        around.finish = None
        resets = self._slots.take_resets()
        batch = replace(self._batch, reset_slots=resets) if resets else self._batch
        size = batch.batch_size
        observes = step.reports and self._stage.has_observers
        if self._around is None or observes or not step.draft.draft_length:
            _begin_now(around)
        if observes:
            self._stage.report_verdict(batch, *self._columns.read_verdict(size, self._stage.sources))
        if not step.draft.draft_length:
            self._runner.note_resets(resets)
            return
        step.is_cut = self._stage.needs_trim(size, step.plan.draft_length, step.plan)
        if self._around is not None and not step.is_cut:
            around.finish = self._finish(step, has_drafted=True)
        is_handed = around.finish is not None
        step.has_drafted = self._propose(step, resets, around)
        step.is_finished = is_handed and around.finish is None
        around.finish = None
        self._runner.has_failed = not step.has_drafted
        if step.is_cut:
            self._cut(step, batch)
        self._stage.in_flight.is_empty = False
        is_plain = step.has_drafted and self._stage.is_trim_planned and step.draft.drawn is None
        step.only_launched = is_plain and not (step.is_cut or observes or step.plan.caps)

    def _begin(self, step: DeviceStep) -> RowWork:
        """Return what the step begins with; a report needs more drafts than the policy's caps allow."""
        caps = self._no_caps if step.is_reported else step.caps
        return self._launches.begin(self._state, self._columns, step, caps)

    def _finish(self, step: DeviceStep, *, has_drafted: bool) -> RowWork:
        """Return what the step finishes with, if its proposer has drafted or not."""
        adds = step.is_reported and has_drafted and not step.is_cut
        number = Number(self._recorded + 1 if step.has_record and has_drafted else 0)
        inputs = self._state, self._columns, self._sums, step
        return self._launches.finish(*inputs, adds=adds, number=number, vocab_size=self._vocab_size)

    def engine_tokens(self) -> int:
        """Return how many tokens the engine's own drafter should draft in the next step; see `engine_tokens_after`.

        Steps that have not ended are counted later: nothing waits for them.
        """
        self._read = max(self._read, self._recorded - RECORDS)
        while self._read < self._recorded:
            step, rows = divmod(int(self._records[(self._read + 1) % RECORDS, 0]), STEP)
            if step != self._read + 1:
                break
            self._read = step
            self._unused = 0 if rows else self._unused + 1
        return engine_tokens_after(self._unused, self._stage.engine_tokens)

    def _propose(self, step: DeviceStep, resets: tuple[int, ...], around: Around) -> bool:
        """Begin and run the proposer with its faults contained; return whether it drafted, leave no draft if not."""
        runner = self._runner
        counts = self._columns.counts
        size, draft_length = step.draft.token_ids.shape
        if not runner.is_ready(resets):
            _begin_now(around)
            runner.ingested[self._batch.slots] = counts[KNOWN, :size]
            return False
        missed = runner.take_resets()
        batch = replace(self._for_proposer, reset_slots=missed) if missed else self._for_proposer
        if runner.step(batch, counts[LIMITS, :size], step.draft, run=partial(self._run, around)):
            return True
        self._views.clear()  # a proposer can even resize its own view
        runner.buffer.lengths[:size].zero_()
        step.draft = self._view(size, draft_length)
        return False

    def _run(self, around: Around, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        assert draft is not None
        signature = _signature_of(draft)
        try:
            self._runner.handle.step(batch, limits, draft)
        finally:
            _begin_now(around)
        if _signature_of(draft) != signature:
            raise ContractError.build("a tensor of the draft has been resized or moved", found=draft.token_ids.shape)

    def _cut(self, step: DeviceStep, batch: EngineBatch) -> None:
        """Let the policy cut the drafts, in place; if they are reported their survival is summed up first."""
        size = batch.batch_size
        counts = self._columns.counts
        sanitize(step.draft, counts[LIMITS, :size], self._vocab_size)
        shift_sources(step.draft, 0)
        if step.is_reported and step.has_drafted:
            self._sums.sums[ROWS:] = survival_sums(step.draft, counts[COUNTED, :size])
            step.draft.shorten(step.caps[:size].clamp(max=step.plan.draft_length))
        draft = self._view(size, step.plan.draft_length)
        cut = self._stage.trim_by_policy(batch, draft, step.plan)
        if cut is not draft:
            draft.as_one_hot().copy_(cut)
            if draft.drawn is not None:
                draft.drawn.zero_()

    def _view(self, batch_size: int, draft_length: int) -> Draft:
        """Return the rows and columns of the draft buffer that a step uses."""
        found = self._views.get((batch_size, draft_length))
        if found is None:
            if len(self._views) > MAX_VIEWS:
                self._views.clear()
            found = self._views[batch_size, draft_length] = self._runner.buffer.view(batch_size, draft_length)
        return found

    def _warm_up(self, engine: EngineTensors, outputs: DraftOutputs, last_sampled: Tensor) -> None:
        """Compile the kernels, or load them from their cache."""
        nowhere = outputs._replace(ids=outputs.ids[:0])
        step = DeviceStep(engine, nowhere, last_sampled, self._columns.temperature, NO_SPECULATION, True)
        step.order = step.places = self._all_rows
        step.caps = self._no_caps
        step.draft = self._view(0, 0)
        begin = self._begin(step)
        finish = self._finish(step, has_drafted=False)
        begin.launch()
        finish.launch()
        if self._around is not None:
            self._around.begin = begin
            self._around.finish = finish
            self._runner.handle.proposer.warmup()


def _begin_now(around: Around) -> None:
    """Launch what a step begins with, unless that has been done."""
    if around.begin is not None:
        around.begin.launch()
        around.begin = None


def _signature_of(draft: Draft) -> tuple[object, ...]:
    """Return the shapes and addresses of a draft's tensors, which a kernel reads by them afterwards."""
    tensors = (draft.token_ids, draft.confidence, draft.source, draft.lengths, draft.base_len)
    return tuple([(tensor.shape, tensor.data_ptr()) for tensor in tensors])
