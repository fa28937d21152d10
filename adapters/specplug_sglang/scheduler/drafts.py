"""Drafts of rank 0 for batches that decode, by a stage that takes its steps itself, and their counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specplug.metrics import MetricsSnapshot, SpecMetrics
from specplug.steps.draft_report import NO_DRAFTS, DraftReport, may_report, survival_sums
from specplug.steps.draft_stage import DraftStage
from specplug.steps.stops import StopDetector
from specplug.types.caps import EngineCaps
from specplug.types.step import Draft, EngineBatch, Outcome, StepPlan, Verdict
from specplug_sglang.scheduler.batches import BatchRows, Decoding
from specplug_sglang.scheduler.grammar import GrammarCompleter
from specplug_sglang.verification.trees import TokenTable, on_device

PERIOD = 0.2
"""Least seconds between two copies of counts while steps run."""


class StageDrafts:
    """Drafts of a stage on the engine's device, which takes its steps itself, there or on threads of its own.

    Attributes:
        stage: the draft stage.
        grammars: completes the drafts.
        counts: the stage's counters, for the status.
        report: of the newest step's drafts, to be read once that has ended.
        reports_expected: whether the next step is to report what its drafts are expected to yield, and so drafts even
            where no draft token is verified.
    """

    def __init__(
        self, stage: DraftStage, table: TokenTable, grammars: GrammarCompleter, caps: EngineCaps, vocab_size: int
    ) -> None:
        self.stage = stage
        self._table = table
        self.grammars = grammars
        self._device = table.tokens.device
        self._vocab_size = vocab_size
        self.counts = Counts(stage.metrics, module_of(self._device))
        self.stops = StopDetector(table.tokens.shape[0], caps.max_draft_length, self._device)
        self.report: DraftReport = NO_DRAFTS
        self.reports_expected = False
        self._longest = caps.max_draft_length
        self._may_report = may_report(stage)
        # After SGLang's own drafter, the draft length is that of a runtime state, on a CPU too.
        self._is_fixed = stage.engine_tokens > 0
        self._reads_lengths = self._device.type == "cpu" and not self._is_fixed
        self._unseen = False  # whether tokens were emitted that the stop detector has not seen

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """Draft at most `draft_length` > 0 tokens, cut to the plan's budget and completed by grammars.

        Drafts have as many tokens, or on a CPU as many as the longest row.  None if nothing is drafted.
        """
        view = self._view(batch, batch.before + 1)
        caps = batch.caps(plan)
        most = None if caps is None else on_device(caps, torch.int32, self._device)
        draft = self._proposed(batch, view, draft_length, most)
        if self._has_no_tail():
            return None
        constrained = batch.is_constrained
        if self._reads_lengths and not constrained and self.stage.tracer is None and not draft.lengths.any():
            return None
        draft = self.stage.trim(view, draft, plan)
        proposed = draft.lengths
        if constrained:
            draft = self.grammars.of(view, batch.reqs, draft, most, plan.token_budget)
        return self._fitted(draft, proposed)

    def _has_no_tail(self) -> bool:
        """Return whether lookup failed to continue the newest drafts of SGLang's own drafter."""
        return self._is_fixed and any(runner.has_failed for runner in self.stage.runners)

    def _proposed(self, batch: Decoding, view: EngineBatch, draft_length: int, most: Tensor | None) -> Draft:
        """Return the stage's drafts of at most `draft_length` tokens, and `most` [B] per row; report them if due."""
        if not (self.reports_expected and self._may_report):
            return self.stage.propose(view, draft_length, most)
        whole = self.stage.propose(view, self._longest, batch.rows.table.caps)
        if not any(runner.has_failed for runner in self.stage.runners):
            self.report = self._report_of(batch, whole)
        draft = whole.view(whole.batch_size, draft_length)
        draft.shorten(torch.full_like(draft.lengths, draft_length) if most is None else most.clamp(max=draft_length))
        return draft

    def _report_of(self, batch: Decoding, draft: Draft) -> DraftReport:
        """Sum up what drafts are expected to yield; see `DraftReport`."""
        self._see_ends(batch)
        rows = batch.rows.table
        counted = (rows.caps != 0) & (self.stops.stopped[batch.slots] != rows.generations)
        return DraftReport(survival_sums(draft, counted).to("cpu", non_blocking=True))

    def _fitted(self, draft: Draft, proposed: Tensor) -> Draft | None:
        """Shorten a draft on a CPU, which captures nothing, to its longest row; None if nothing is drafted.

        What a grammar cut must be reported with a step of drafts, even if it cut everything of `proposed` [B] tokens.
        """
        if not self._reads_lengths:
            return draft
        longest = max(int(draft.lengths.max()), int(proposed.any()))
        if not longest:
            self.grammars.drop()
            return None
        return draft.view(draft.batch_size, longest)

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """Report a step that verified `draft` and emitted `accept_lens` [B] tokens, which the token table has already.

        `batch` is as it was before the step.
        """
        view, outcome = self._outcome(batch, draft.lengths, accept_lens.to(torch.int32))
        self.stage.observe(view, self.grammars.annotated(outcome))
        self.counts.step()

    def plain(self, batch: Decoding, plan: StepPlan | None) -> None:
        """Trace a step without drafts, whose tokens the token table has already; `plan` is why nothing was proposed."""
        tracer = self.stage.tracer
        if tracer is None:
            return
        before = self._view(batch, batch.before + 1)
        ones = torch.ones_like(batch.slots, dtype=torch.int32)
        view, outcome = self._outcome(batch, ones - 1, ones)
        nothing = Draft.allocate(len(batch.reqs), 0, device=self._device)
        nothing.base_len.copy_(before.lengths)
        if plan is not None:
            tracer.drafted(before, nothing, plan)
        tracer.verified(view, nothing, Verdict.of_nothing(outcome))

    def idle(self, batch: Decoding) -> None:
        """Prepare for a step that verifies no drafts."""
        if self.reports_expected and self._may_report:
            self._proposed(batch, self._view(batch, batch.before + 1), 0, None)

    def emits_one(self) -> None:
        """Note that a step was launched, of a prefill or without drafts, whose rows emit one token each."""
        self._unseen = True

    def flush(self) -> None:
        """Report the newest verified step now, because a request leaves its slot."""

    @torch.inference_mode()
    def ingest(self, rows: BatchRows, length: int) -> None:
        """Let proposers ingest the `length` tokens of one request's text before it leaves its slot: `rows` has it.

        The tokens of its last step, and of steps without drafts before, are new to them.
        """
        if any(runner.handle.caps.incremental for runner in self.stage.runners):
            slots, lengths = (on_device([value], torch.int64, self._device) for value in (*rows.facts.slots, length))
            self.stage.ingest(rows.view(self._table.tokens, slots, lengths, self._vocab_size))

    def close(self) -> None:
        """Release proposers, threads and files."""
        self.stage.close()

    def _outcome(self, batch: Decoding, verified: Tensor, emitted: Tensor) -> tuple[EngineBatch, Outcome]:
        """Return the batch after a step, and its outcome."""
        self._see_ends(batch)
        lengths = batch.before + 1 + emitted
        after_stop = self._after_stop(batch, lengths, emitted)
        outcome = Outcome(verified=verified, accepted=emitted - 1, emitted=emitted, after_stop=after_stop)
        return self._view(batch, lengths), outcome

    def _see_ends(self, batch: Decoding) -> None:
        """Find the ends of the step before, which the host does not know yet, if it emitted one token per row."""
        if self._unseen:
            self._unseen = False
            self._after_stop(batch, batch.before + 1, torch.ones_like(batch.slots, dtype=torch.int32))

    def _view(self, batch: Decoding, lengths: Tensor) -> EngineBatch:
        """Describe the batch with `lengths` [B] known tokens."""
        return batch.rows.view(self._table.tokens, batch.slots, lengths, self._vocab_size, batch.engine_ids)

    def _after_stop(self, batch: Decoding, lengths: Tensor, emitted: Tensor) -> Tensor:
        """Return [B] int32: how many of the `emitted` [B] newest of `lengths` [B] tokens come after a stop."""
        slots = batch.slots
        lengths = lengths.to(torch.int32)
        return self.stops.after(self._table.tokens, slots, slots, lengths, emitted, batch.rows.table)


def module_of(device: torch.device) -> Any:
    """Return PyTorch's module of a device with queued execution; None if the device has no queue."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)


class Counts:
    """The newest counts known on the host, for the status.

    Steps without drafts are counted on the host (`SpecMetrics.record_on_host`).  The other counters live on the device.
    They are copied to the host a few times a second, and a status request during a step gets the newest copy that has
    arrived.  When no step runs, the counters themselves are read.
    `device_module` is PyTorch's module for the counters' device, such as `torch.cuda`; None if that is the host.
    """

    def __init__(self, metrics: SpecMetrics, device_module: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._module = device_module
        self._clock = clock
        self._newest = tuple(torch.zeros_like(part, device="cpu") for part in metrics.tensors())
        self._coming: tuple[Any, tuple[Tensor, ...]] | None = None
        self._last: Any = None  # the event at the end of the last step
        self._due = 0.0

    def step(self) -> None:
        """Record that a step with drafts was queued on the current stream, and start a copy if one is due."""
        if self._module is None:
            return
        self._arrive()
        if self._coming is None and self._clock() >= self._due:
            copied = tuple(part.to("cpu", non_blocking=True, copy=True) for part in self._metrics.tensors())
            self._coming = self._event(), copied
            self._due = self._clock() + PERIOD
        self._last = self._event()

    def read(self) -> MetricsSnapshot:
        """Return the counts after the last step with drafts if it has ended, else those of an earlier one."""
        if self._module is None:
            return self._metrics.snapshot()
        self._arrive()
        if self._last is not None and self._last.query():  # read once: steps without drafts change nothing
            self._newest = tuple(part.to("cpu", copy=True) for part in self._metrics.tensors())
            self._last = self._coming = None
        return self._metrics.snapshot(self._newest)

    def _arrive(self) -> None:
        """Take a copy that has arrived."""
        if self._coming is not None and self._coming[0].query():
            self._newest = self._coming[1]
            self._coming = None

    def _event(self) -> Any:
        event = self._module.Event()
        event.record()
        return event
