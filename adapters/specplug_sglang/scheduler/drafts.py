"""Drafts of rank 0 for batches that decode: by kernels around the proposer's where those apply, else by the stage.

With kernels, one step reports what the engine's last step emitted, and drafts for its next one.  The report needs the
same requests in the same slots, so it is made on its own before a request leaves, and before a batch of other requests
drafts.  The stage, with which all state is shared, takes the steps of batches with grammars.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.faults import FaultGuard
from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug.steps.device_steps import DeviceSteps, Launches
from specplug.steps.draft_report import NO_DRAFTS, DraftReport, may_report, survival_sums
from specplug.steps.draft_stage import DraftStage
from specplug.steps.rows import Rows
from specplug.steps.slots import SlotTable
from specplug.steps.stops import StopDetector
from specplug.types.caps import EngineCaps
from specplug.types.step import NO_SPECULATION, Draft, EngineBatch, Outcome, StepPlan, Verdict
from specplug.types.tensors import on_device
from specplug_sglang.scheduler.batches import Decoding
from specplug_sglang.scheduler.grammar import GrammarCompleter
from specplug_sglang.verification.trees import TokenTable


class _Unreported(NamedTuple):
    """A step of the kernels that verified drafts: its batch before it, and tokens emitted [B]."""

    batch: Decoding
    emitted: Tensor


class Drafts:
    """Drafts of a stage on the engine's device.

    Args:
        stage: the draft stage.
        table: texts by slot.
        slots: the slots of the requests.
        caps: the engine's capabilities.
        vocab_size: V.
        tokenizer: the target's, which grammars need; may be None.
        launches: the kernels that take steps; None if there are none for the device.

    Attributes:
        grammars: completes the drafts.
        reports_expected: whether the next step is to report what its drafts are expected to yield, and so drafts even
            where no draft token is verified.
        report: of the newest step's drafts, to be read once that has ended.
    """

    def __init__(
        self,
        stage: DraftStage,
        table: TokenTable,
        slots: SlotTable,
        caps: EngineCaps,
        vocab_size: int,
        *,
        tokenizer: Any = None,
        launches: Launches | None = None,
    ) -> None:
        self.stage = stage
        self.grammars = GrammarCompleter(vocab_size, tokenizer, FaultGuard("grammar", sink=stage.metrics.count_fault))
        self.reports_expected = False
        self.report: DraftReport = NO_DRAFTS
        self.stops = StopDetector(len(table.tokens), caps.max_draft_length, table.tokens.device)
        self._table = table
        self._device = table.tokens.device
        self._vocab_size = vocab_size
        self._longest = caps.max_draft_length
        self._may_report = may_report(stage)
        # After SGLang's own drafter, the draft length is that of a runtime state, on a CPU too.
        self._is_fixed = stage.engine_tokens > 0
        self._reads_lengths = self._device.type == "cpu" and not self._is_fixed
        self._unseen = False  # whether tokens were emitted that the stop detector has not seen
        self._unreported: _Unreported | None = None
        self._steps: DeviceSteps | None = None
        if launches is not None and DeviceSteps.applies(stage):
            self._build_steps(slots, launches)

    def _build_steps(self, slots: SlotTable, launches: Launches) -> None:
        table = self._table.tokens
        self._ones = torch.ones(len(table), dtype=torch.int32, device=self._device)
        by_row = self._ones.long()
        engine_tokens = self.stage.engine_tokens
        self._rows = EngineTensors(
            idx_mapping=by_row,
            total_len=by_row,
            all_token_ids=table,
            num_sampled=self._ones,
            # SGLang verifies whole drafts, so that nothing is lost by calling all other tokens rejected.
            num_rejected=torch.full_like(self._ones, self._longest),
            lengths_by_row=True,
            num_uncounted=1,
            engine_ids=by_row.new_zeros(len(table), engine_tokens) if engine_tokens else None,
        )
        self._nothing = torch.empty(len(table), 0, device=self._device)
        self._outputs = lru_cache(maxsize=64)(self._outputs_of)
        self._padding = table[:, 0]  # nothing reads what drafts are padded with
        like = self._rows, self._outputs(0), self._padding
        self._steps = DeviceSteps(self.stage, slots, self.stops, self._vocab_size, launches, like=like)

    def _outputs_of(self, rows: int) -> DraftOutputs:
        """Return outputs of so many rows without columns: verification reads the drafts themselves."""
        return DraftOutputs(self._nothing[:rows], self._nothing[:rows])

    # -- before a step ---------------------------------------------------------------------------------------------

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """Draft at most `draft_length` > 0 tokens, cut to the plan's budget and completed by grammars.

        Drafts have as many tokens, or on a CPU as many as the longest row.  None if nothing is drafted.
        """
        if self._steps is None or batch.is_constrained:
            return self._propose_by_stage(batch, draft_length, plan)
        planned = plan if plan.draft_length == draft_length else replace(plan, draft_length=draft_length)
        draft = self._next(batch, planned)
        if self._is_fixed and self._has_failed():
            return None
        return self._fitted(draft, draft.lengths) if self._reads_lengths else draft

    def skip(self, batch: Decoding) -> None:
        """Prepare for a step that verifies no drafts."""
        if not (self.reports_expected and self._may_report):
            self.flush()
        elif self._steps is not None:
            self._next(batch, NO_SPECULATION)
        else:
            self._proposed(batch, self._view(batch, batch.before + 1), 0, None)

    def _next(self, batch: Decoding, plan: StepPlan) -> Draft:
        """Take a batch's step in kernels, which reports the step before if that had the same rows."""
        assert self._steps is not None
        if self._unreported is not None and self._unreported.batch.rows is not batch.rows:
            self.flush()
        step = self._unreported
        self._unreported = None
        emitted = self._ones if step is None else step.emitted
        rows = self._rows._replace(idx_mapping=batch.slots, total_len=batch.before, num_sampled=emitted)
        if batch.engine_ids is not None:
            rows = rows._replace(engine_ids=batch.engine_ids)
        due = self.reports_expected and self._may_report
        outputs = self._outputs(len(batch.reqs))
        inputs = batch.rows, rows, outputs, self._padding, batch.rows.temperature, plan
        draft = self._steps.take(*inputs, reports=step is not None, reports_expected=due)
        self.report = self._steps.report
        return draft

    def _propose_by_stage(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        self.flush()
        view = self._view(batch, batch.before + 1)
        limits = batch.rows.caps_of(plan)
        draft = self._proposed(batch, view, draft_length, limits)
        if self._is_fixed and self._has_failed():
            return None
        constrained = batch.is_constrained
        if self._reads_lengths and not constrained and self.stage.tracer is None and not draft.lengths.any():
            return None
        draft = self.stage.trim(view, draft, plan)
        proposed = draft.lengths
        if constrained:
            draft = self.grammars.of(view, batch.reqs, draft, limits, plan.token_budget)
        return self._fitted(draft, proposed) if self._reads_lengths else draft

    def _proposed(self, batch: Decoding, view: EngineBatch, draft_length: int, limits: Tensor | None) -> Draft:
        """Return the stage's drafts of at most `draft_length` tokens, and `limits` [B] per row; report them if due."""
        if not (self.reports_expected and self._may_report):
            return self.stage.propose(view, draft_length, limits)
        whole = self.stage.propose(view, self._longest, batch.rows.caps)
        if not self._has_failed():
            self._see_ends(batch)
            rows = batch.rows
            counted = (rows.caps != 0) & (self.stops.stopped[batch.slots] != rows.generations)
            self.report = DraftReport(survival_sums(whole, counted).to("cpu", non_blocking=True))
        draft = whole.view(whole.batch_size, draft_length)
        whole_length = torch.full_like(draft.lengths, draft_length)
        draft.shorten(whole_length if limits is None else limits.clamp(max=draft_length))
        return draft

    def _has_failed(self) -> bool:
        return any(runner.has_failed for runner in self.stage.runners)

    def _fitted(self, draft: Draft, proposed: Tensor) -> Draft | None:
        """Shorten a draft on a CPU, which captures nothing, to its longest row; None if nothing is drafted.

        What a grammar cut must be reported with a step of drafts, even if it cut everything of `proposed` [B] tokens.
        """
        longest = max(int(draft.lengths.max()), int(proposed.any()))
        if not longest:
            self.grammars.drop()
            return None
        return draft.view(draft.batch_size, longest)

    # -- after a step ----------------------------------------------------------------------------------------------

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """Report a step that verified `draft` and emitted `accept_lens` [B] tokens, which the token table has already.

        `batch` is as it was before the step.
        """
        if self._steps is not None and not batch.is_constrained:
            self._unreported = _Unreported(batch, accept_lens)
            return
        view, outcome = self._outcome(batch, draft.lengths, accept_lens.to(torch.int32))
        self.stage.observe(view, self.grammars.annotated(outcome))

    def trace_plain(self, batch: Decoding, plan: StepPlan | None) -> None:
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

    def note_single_tokens(self) -> None:
        """Note that a step was launched, of a prefill or without drafts, whose rows emit one token each."""
        self._unseen = True

    @torch.inference_mode()
    def flush(self) -> None:
        """Report the newest verified step now, because a request leaves its slot."""
        step = self._unreported
        self._unreported = None
        if step is not None and self._steps is not None:
            batch = step.batch
            after = batch.before + step.emitted
            rows = self._rows._replace(idx_mapping=batch.slots, total_len=after, num_sampled=step.emitted)
            inputs = batch.rows, rows, self._outputs(len(batch.reqs)), self._padding, batch.rows.temperature
            self._steps.take(*inputs, NO_SPECULATION, reports=True)

    @torch.inference_mode()
    def ingest(self, rows: Rows, length: int) -> None:
        """Let proposers ingest the `length` tokens of one request's text before it leaves its slot: `rows` has it.

        The tokens of its last step, and of steps without drafts before, are new to them.
        """
        self.flush()
        if any(runner.handle.caps.incremental for runner in self.stage.runners):
            lengths = on_device([length], torch.int32, self._device)
            self.stage.ingest(rows.batch(self._table.tokens, rows.device_slots, lengths, self._vocab_size))

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
        engine_ids = None if batch.engine_ids is None else batch.engine_ids.int()
        inputs = self._table.tokens, batch.slots, lengths.int(), self._vocab_size
        return batch.rows.batch(*inputs, engine_ids=engine_ids)

    def _after_stop(self, batch: Decoding, lengths: Tensor, emitted: Tensor) -> Tensor:
        """Return [B] int32: how many of the `emitted` [B] newest of `lengths` [B] tokens come after a stop."""
        return self.stops.after(batch.rows, self._table.tokens, batch.slots, lengths.int(), emitted)
