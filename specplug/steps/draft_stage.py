"""The draft stage: runs proposers and the trim half of a policy on the device, and passes verdicts back to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.faults import FaultGuard
from specplug.grammar.drafts import SOURCE, split_grammar_verdict
from specplug.interfaces import Proposer, Trimmer
from specplug.metrics import SpecMetrics
from specplug.steps.choices import Choices
from specplug.steps.draft_buffers import DraftBuffers
from specplug.steps.handles import ProposerHandle
from specplug.steps.in_flight import InFlight
from specplug.steps.memory import require
from specplug.steps.proposer_runner import ProposerRunner
from specplug.steps.sanitize import sanitize
from specplug.steps.tracer import StepTracer
from specplug.trace import TraceWriter
from specplug.types.caps import EngineCaps
from specplug.types.plan import TrimLimits, first_rise
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch, Outcome, StepPlan, Verdict


class DraftStage:
    """The device half: runs proposers and the trimmer, and passes verdicts back to them.

    Args:
        handles: the proposers, the server's default first; requests may name any of them.
        guards: one per handle.
        trimmer: the policy's trim half, with its guard.
        caps: the engine's capabilities.
        max_slots: S.
        vocab_size: V, the vocabulary of the buffers for full distributions, which are allocated once, here.
        device: the device of batches and drafts.
        metrics: the counters.
        trace: the writer of drafts and verdicts, or None.  Tracing reads back at every step.
    """

    def __init__(
        self,
        handles: Sequence[ProposerHandle],
        guards: Sequence[FaultGuard],
        trimmer: Trimmer,
        trimmer_guard: FaultGuard,
        *,
        caps: EngineCaps,
        max_slots: int,
        vocab_size: int,
        device: torch.device,
        metrics: SpecMetrics,
        trace: TraceWriter | None = None,
    ) -> None:
        self._trimmer = trimmer
        self.trimmer_guard = trimmer_guard
        """The circuit breaker of the trim half."""
        self.metrics = metrics
        self.tracer = None if trace is None else StepTracer(trace, metrics.count_fault)
        """Writes the trace, if there is one; every step must then be reported, also those without drafts."""
        buffers = self._buffers = DraftBuffers(handles, caps, max_slots, vocab_size, device)
        self.sources = buffers.sources
        """Names that `Draft.source` indexes: the sources of all proposers, in order."""
        self.distribution = buffers.distribution
        """The distribution that drafts may carry; `Distribution.ONE_HOT` if no proposer provides one."""
        self.has_draft_vocab = buffers.has_draft_vocab
        """True if the drafts' distributions are over a draft vocabulary."""
        self.distribution_bytes = buffers.distribution_bytes
        """Bytes that the drafts' distributions take, in the only buffer that holds them."""
        self.engine_tokens = caps.engine_tokens
        self._takes_trees = caps.trees
        trees = caps.trees and any(handle.caps.trees for handle in handles)
        self.in_flight = InFlight(max_slots, caps.max_draft_length, device, trees=trees)
        self.runners = tuple(map(ProposerRunner, handles, guards, self._buffers.parts))
        """The runners of the proposers, the server's default first."""
        self._choices = Choices([handle.spec.name for handle in handles], max_slots, device)
        self.has_observers = trace is not None or trimmer.learns or any(handle.caps.learns for handle in handles)

    @property
    def proposers(self) -> dict[str, Proposer]:
        """The proposers by name, the server's default first."""
        return {runner.handle.spec.name: runner.handle.proposer for runner in self.runners}

    @property
    def bytes_to_allocate(self) -> int:
        """Bytes on the engine's device that proposers have declared but not allocated when they were built."""
        return sum(runner.handle.to_allocate for runner in self.runners)

    def leave_room(self, available: int) -> int:
        """Return how many of `available` bytes remain for the engine's key-value cache.

        Raises:
            PluginError: none remain.
        """
        names = " + ".join(it.handle.spec.name for it in self.runners if it.handle.to_allocate)
        if names:
            require(names, self.bytes_to_allocate, available)
        return available - self.bytes_to_allocate

    @torch.inference_mode()
    def propose(self, batch: EngineBatch, draft_length: int, caps: Tensor | None = None) -> Draft:
        """Let every proposer ingest the batch; return drafts of at most `draft_length` tokens, and `caps` [B] per row.

        With a draft length of 0, no proposer runs: they ingest the step's tokens before they draft again.  Dummy steps
        change no state.  The next call overwrites the buffer of the draft.  The slots of a batch are distinct: padding
        rows need their own slots or are left out.
        """
        if batch.is_dummy or not batch.batch_size or not draft_length:
            for runner in self.runners if not batch.is_dummy else ():
                runner.note_resets(batch.reset_slots)
            draft = self._buffers.empty(batch, draft_length)
        else:
            limits = batch.limits(draft_length, caps)
            parts = [self._part(index, batch, limits, draft_length) for index in range(len(self.runners))]
            draft = self._buffers.merge(batch, parts)
        return draft if self._takes_trees else draft.as_chain()

    @torch.inference_mode()
    def ingest(self, batch: EngineBatch) -> None:
        """Let every proposer ingest the batch without drafting, for example before a request's last tokens are gone."""
        for runner in self.runners:
            runner.ingest(batch)

    @torch.inference_mode()
    def trim(self, batch: EngineBatch, draft: Draft, plan: StepPlan) -> Draft:
        """Cut the drafts by the plan's budget and costs, and store them until their verdict."""
        if batch.is_dummy or not batch.batch_size:
            return draft
        if self.tracer is not None:
            self.tracer.drafted(batch, draft, plan, failed=any(runner.has_failed for runner in self.runners))
        draft = self.cut(batch, draft, plan)
        self.in_flight.put(batch, draft, self._choices.num_requests)
        return draft

    def cut(self, batch: EngineBatch, draft: Draft, plan: StepPlan) -> Draft:
        """Cut the drafts like `trim`, but do not store them."""
        return (
            self.trim_by_policy(batch, draft, plan)
            if self.needs_trim(draft.batch_size, draft.draft_length, plan)
            else draft
        )

    def needs_trim(self, batch_size: int, draft_length: int, plan: StepPlan) -> bool:
        """Return whether drafts of at most `draft_length` tokens are passed to the policy's trim half.

        Where no limit of the plan binds, the policy answers; if that raises, its trim half decides.
        """
        places = batch_size * draft_length
        if not places:
            return False
        if plan.budget_of(places) < places or first_rise(plan.costs) < places:
            return True
        answers: list[bool] = []
        has_answered = self.trimmer_guard.call(
            lambda: answers.append(bool(self._trimmer.cuts_without_budget(batch_size, draft_length)))
        )
        return not has_answered or answers[0]

    @property
    def is_trim_planned(self) -> bool:
        """Whether the plan and the size of a step tell whether it `needs_trim`."""
        return type(self._trimmer).cuts_without_budget is Trimmer.cuts_without_budget

    def trim_by_policy(self, batch: EngineBatch, draft: Draft, plan: StepPlan) -> Draft:
        """Return what the policy's trim half keeps of the drafts of a step that `needs_trim`.

        If it fails, all drafts are dropped, so the budget holds.
        """
        budget = plan.budget_of(draft.batch_size * draft.draft_length)
        cut = list[Draft]()
        limits = TrimLimits.build(budget, plan.costs, device=draft.device)

        def trim() -> None:
            trimmed = self._trimmer.trim(draft.view(draft.batch_size, draft.draft_length), limits)
            _check_shape(trimmed, draft)
            sanitize(trimmed, draft.lengths, batch.vocab_size)
            cut.append(trimmed)

        if self.trimmer_guard.admits_step() and self.trimmer_guard.step(trim):
            return cut[0].as_one_hot()  # the trimmer may have selected tokens by value
        draft.clear()
        return draft

    @torch.inference_mode()
    def observe(self, batch: EngineBatch, outcome: Outcome) -> Verdict:
        """Join an engine's report with its drafts, and pass the verdict to metrics, trace and plug-ins.

        `batch` is the batch after verification; `outcome` is in its row order.
        """
        if batch.is_dummy:
            return Verdict.build(torch.zeros_like(outcome.emitted), outcome)
        if self.in_flight.is_empty and not self.has_observers:
            verdict = Verdict.of_nothing(outcome)
            self.metrics.record_plain(verdict, self._choices.takes_none(batch.slots))
            return verdict
        lengths, source = self.in_flight.take(batch, outcome.emitted)
        verdict = Verdict.build(lengths, outcome)
        self.metrics.record(source, verdict, self._choices.takes_none(batch.slots))
        forced = None if outcome.forced is None else self._count_forced_tokens(batch, outcome, verdict)
        if self.has_observers:
            draft = self.in_flight.drafts(batch, outcome.emitted, lengths, source, self.sources)
            self.report_verdict(batch, draft, verdict, forced)
        return verdict

    def report_verdict(
        self, batch: EngineBatch, draft: Draft, verdict: Verdict, forced: tuple[Draft, Verdict] | None = None
    ) -> None:
        """Pass trimmed drafts and their verdict to the trace, and to the proposers and trim half that learn.

        The trace also gets the tokens that grammars `forced`; proposers do not see them.
        """
        if self.tracer is not None:
            self.tracer.verified(batch, draft, verdict, forced)
        for runner, start in zip(self.runners, self._buffers.starts, strict=False):
            runner.observe(batch, draft, start, verdict)
        if self._trimmer.learns and not self.trimmer_guard.is_off:
            seen = batch.with_new(verdict.emitted, batch.reset_slots)
            self.trimmer_guard.call(partial(self._trimmer.observe, seen, draft, verdict))

    def _count_forced_tokens(self, batch: EngineBatch, outcome: Outcome, verdict: Verdict) -> tuple[Draft, Verdict]:
        """Count the tokens that grammars drafted; return those that were reached, and the verdict on them."""
        draft, added, reached = split_grammar_verdict(batch.lengths, outcome, verdict)
        self.metrics.record_added(SOURCE, added, reached)
        return replace(draft, lengths=draft.lengths * reached), added

    @torch.inference_mode()
    def on_event(self, event: Event) -> None:
        """Pass an event to every proposer, even if switched off, and record which proposer a request chose."""
        self._choices.on_event(event)
        for runner in self.runners:
            runner.on_event(event)
        if self.tracer is not None:
            self.tracer.on_event(event)

    def close(self) -> None:
        """Release proposers and the trace."""
        for runner in self.runners:
            runner.close()
        if self.tracer is not None:
            self.tracer.close()

    def _part(self, index: int, batch: EngineBatch, limits: Tensor, draft_length: int) -> Draft:
        """Return one proposer's sanitized drafts for the rows that chose it."""
        runner = self.runners[index]
        if self._choices.is_wanted(index):
            return runner.draft(batch, self._choices.limits(index, batch.slots.long(), limits), draft_length)
        runner.ingest(batch)
        return runner.empty(batch, draft_length)


def _check_shape(trimmed: Draft, draft: Draft) -> None:
    if trimmed.token_ids.shape != draft.token_ids.shape or trimmed.device != draft.device:
        found, expected = [f"{tuple(it.token_ids.shape)} on {it.device}" for it in (trimmed, draft)]
        raise ContractError.build("trimmed to another shape, or moved", found=found, expected=expected)
    trimmed.validate()
