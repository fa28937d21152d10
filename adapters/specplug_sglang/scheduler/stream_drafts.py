"""Drafts in the engine's stream or between two kernels, and the choice of how rank 0 drafts.

One step reports what the engine's last step emitted, and drafts for its next one.  The report needs the same requests
in the same slots, so it is made on its own before a request leaves, and before a batch of other requests drafts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage, may_stream
from specplug.faults import FaultGuard
from specplug.grammar.drafts import SOURCE, Completed, verdict_on_forced
from specplug.interfaces import PluginContext
from specplug.pipeline.device.columns import Launches, launches_for
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.plugins.registry import default_registry
from specplug.runtime.device_steps import DeviceSteps
from specplug.runtime.first_step import started
from specplug.runtime.slots import SlotAllocator, SlotTable
from specplug.runtime.steps_in_flight import StepInFlight
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.model import Settings
from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION, StepPlan
from specplug.types.request import Event
from specplug.types.verdict import Outcome
from specplug_sglang.scheduler.batches import BatchRows, Decoding
from specplug_sglang.scheduler.drafts import Counts, Drafts, StageDrafts, module_of
from specplug_sglang.scheduler.grammar import GrammarCompleter
from specplug_sglang.verification.trees import TokenTable

HOST = torch.device("cpu")


class _Unreported(NamedTuple):
    """A step that verified drafts: its batch before it, tokens emitted [B], by row what grammars cut, its stream."""

    batch: Decoding
    emitted: Tensor
    cut: Sequence[int]
    stream: Any


class ReportingDrafts(Drafts):
    """Drafts of at most `draft_length` tokens, whose steps report the step before, see above."""

    def __init__(self, table: TokenTable, draft_length: int, engine_tokens: int = 0) -> None:
        self._module = module_of(table.tokens.device)
        self._ones = torch.ones(len(table.tokens), dtype=torch.int32, device=table.tokens.device)
        slots, most = self._ones.long(), torch.full_like(self._ones, draft_length)
        engine_ids = slots.new_zeros(len(slots), engine_tokens) if engine_tokens else None
        # SGLang verifies whole drafts, so that nothing is lost by calling all other tokens rejected.
        self._rows = EngineRows(slots, slots, table.tokens, self._ones, most, True, 1, engine_ids)
        self._unreported: _Unreported | None = None

    def _take(self, batch: Decoding) -> tuple[EngineRows, _Unreported | None]:
        """Return the rows of a step that drafts, and the step that it reports, if that had the same rows."""
        if self._unreported is not None and self._unreported.batch.rows is not batch.rows:
            self.flush()
        step, self._unreported = self._unreported, None
        emitted = self._ones if step is None else step.emitted
        rows = self._rows._replace(idx_mapping=batch.slots, total_len=batch.before, num_sampled=emitted)
        return rows if batch.engine_ids is None else rows._replace(engine_ids=batch.engine_ids), step

    @torch.inference_mode()
    def flush(self) -> None:
        """See `Drafts.flush`; the step is reported in the stream that it ran in."""
        step, self._unreported = self._unreported, None
        if step is None:
            return
        with nullcontext() if self._module is None else self._module.stream(step.stream):
            after = step.batch.before + step.emitted
            rows = self._rows._replace(idx_mapping=step.batch.slots, total_len=after, num_sampled=step.emitted)
            self._report(step, rows)

    def _store(self, batch: Decoding, emitted: Tensor, cut: Sequence[int] = ()) -> None:
        """Keep a step until it is reported; fields as in `_Unreported`."""
        stream = None if self._module is None else self._module.current_stream()
        self._unreported = _Unreported(batch, emitted, cut, stream)

    @abstractmethod
    def _report(self, step: _Unreported, rows: EngineRows) -> None:
        """Report a step on its own, with rows as they are after it."""


class StreamDrafts(ReportingDrafts):
    """Drafts of a proposer on the host, in the engine's stream; see `specplug.runtime.stream_steps`.

    The draft stage and the table of slots are on the CPU, the token table on the engine's device.
    """

    def __init__(
        self, stage: DraftStage, slots: SlotTable, table: TokenTable, grammars: GrammarCompleter, context: PluginContext
    ) -> None:
        like, device = stage.runners[0].buffer, table.tokens.device
        super().__init__(table, like.draft_length, stage.engine_tokens)
        self.stage, self.grammars = stage, grammars
        self.counts = Counts(stage.metrics, None)
        # After SGLang's own drafter, the draft length is that of a runtime state, on a CPU too.
        self._is_fixed = stage.engine_tokens > 0
        self._reads_lengths = device.type == "cpu" and not self._is_fixed
        self._draft = draft = Draft.allocate(*like.token_ids.shape, device=device, trees=like.parents is not None)
        types = self._rows, DraftOutputs(draft.token_ids, lengths=draft.lengths, parents=draft.parents)
        self._steps = StreamSteps(stage, slots, context.max_length, context.vocab_size, device, like=types)

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """See `Drafts.propose`; waits for the drafts only on a CPU, or if a grammar completes them."""
        found: list[Draft | None] = []
        if self._steps.attempt(batch.rows.facts, lambda: found.append(self._propose(batch, draft_length, plan))):
            return found[0]
        self.grammars.drop()
        return None

    def _propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """Report the step before, and draft."""
        plan = plan if plan.draft_length == draft_length else replace(plan, draft_length=draft_length)
        step = self._launch(batch, plan)
        longest = draft_length
        if batch.is_constrained:
            longest = self._complete(batch, step, draft_length, plan)
        elif self._reads_lengths:
            longest = self._steps.longest(step)
        if not longest and not self._is_fixed:
            self._steps.drop(step)
            return None
        draft = self._draft.view(len(batch.reqs), longest if self._reads_lengths else draft_length)
        outputs = DraftOutputs(draft.token_ids, lengths=draft.lengths, parents=draft.parents)
        self._steps.unpack(step, draft.draft_length, outputs)
        return draft

    def _launch(self, batch: Decoding, plan: StepPlan) -> StepInFlight:
        """Start a step, which reports the step before if that verified drafts of the same requests."""
        rows, before = self._take(batch)
        step = self._steps.launch(
            batch.rows.facts,
            rows,
            plan,
            reports=before is not None,
            reports_expected=self.reports_expected,
            cut_by_grammar=() if before is None else before.cut,
        )
        self.report = step.report
        return step

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        self.completed = self.grammars.take() if batch.is_constrained else None
        self._store(batch, accept_lens, () if self.completed is None else self.completed.cut)

    def idle(self, batch: Decoding) -> None:
        facts = batch.rows.facts
        if not (self.reports_expected and self._steps.may_report):
            self.flush()
            if self._steps.skip(facts):
                return
        self._steps.attempt(facts, lambda: self._steps.drop(self._launch(batch, NO_SPECULATION)))

    def count_grammars(self, completed: Completed, lengths: Tensor, accepted: Sequence[int]) -> None:
        """See `Drafts.count_grammars`.  With a grammar in the batch, no row goes on after its end."""
        if completed.forced is None:
            return
        kept = torch.tensor(accepted, dtype=torch.int32)
        outcome = completed.annotated(Outcome(verified=lengths, accepted=kept, emitted=kept + 1))
        self.stage.metrics.record_added(SOURCE, *verdict_on_forced(outcome))

    def close(self) -> None:
        self._unreported = None
        self._steps.close()

    def _report(self, step: _Unreported, rows: EngineRows) -> None:
        facts, cut = step.batch.rows.facts, step.cut
        self._steps.attempt(
            facts, lambda: self._steps.drop(self._steps.launch(facts, rows, NO_SPECULATION, cut_by_grammar=cut))
        )

    def _complete(self, batch: Decoding, step: StepInFlight, draft_length: int, plan: StepPlan) -> int:
        """Let grammars complete a step's drafts; return the tokens of the longest."""
        view, draft = self._steps.drafts(step, draft_length)
        caps = batch.caps(plan)
        most = None if caps is None else torch.tensor(caps, dtype=torch.int32)
        proposed = bool(draft.lengths.any())
        draft.copy_(self.grammars.of(view, batch.reqs, draft, most, plan.token_budget))
        # What a grammar cut must be reported with a step of drafts, even if it cut everything.
        longest = max(int(draft.lengths.max()), int(proposed))
        if not longest:
            self.grammars.drop()
        return longest


class DeviceDrafts(ReportingDrafts):
    """Drafts of a stage on the engine's device, in one kernel before its proposer and one after it.

    Steps of batches with grammars are those `by_stage`, whose stage shares all state.
    """

    def __init__(
        self, by_stage: StageDrafts, table: TokenTable, vocab_size: int, slots: SlotTable, launches: Launches
    ) -> None:
        super().__init__(table, by_stage.stage.runners[0].buffer.draft_length)
        self.stage, self.grammars, self.counts = by_stage.stage, by_stage.grammars, by_stage.counts
        self._by_stage = by_stage
        self._padding = table.tokens[:, 0]  # nothing reads what drafts are padded with
        self._nothing = torch.empty(len(table.tokens), 0, device=table.tokens.device)
        like = self._rows, self._outputs(0), self._padding
        self._steps = DeviceSteps(self.stage, slots, by_stage.stops, vocab_size, launches, like=like)

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        if batch.is_constrained:
            self.flush()
            return self._by_stage.propose(batch, draft_length, plan)
        rows, step = self._take(batch)
        draft = self._step(batch.rows, rows, replace(plan, draft_length=draft_length), reports=step is not None)
        return self._by_stage.fitted(draft, draft.lengths)

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        if batch.is_constrained:
            self._by_stage.observe(batch, draft, accept_lens)
        else:
            self._store(batch, accept_lens)

    def idle(self, batch: Decoding) -> None:
        self.flush()

    def emits_one(self) -> None:
        self._by_stage.emits_one()

    def close(self) -> None:
        self._unreported = None
        self._by_stage.close()

    def _report(self, step: _Unreported, rows: EngineRows) -> None:
        self._step(step.batch.rows, rows, NO_SPECULATION, reports=True)

    def _step(self, of: BatchRows, rows: EngineRows, plan: StepPlan, *, reports: bool) -> Draft:
        outputs = self._outputs(len(of.facts.names))
        draft = self._steps.take(of.facts, rows, outputs, self._padding, of.temperature, plan, reports=reports)
        if reports:
            self.counts.step()
        return draft

    def _outputs(self, rows: int) -> DraftOutputs:
        """Return outputs without columns: verification reads the drafts themselves."""
        return DraftOutputs(self._nothing[:rows], self._nothing[:rows])


def build(
    settings: Settings, context: PluginContext, table: TokenTable, tokenizer: Any, notify: Callable[[Event], None]
) -> tuple[Drafts, SlotAllocator]:
    """Return how to draft, and the slots of requests, which lie where the draft stage does.

    A proposer on the host drafts in the engine's stream if it can, with a stage on the CPU.  The target's `tokenizer`
    may be None; `notify` is called with the slots' events.
    """

    def grammars_of(stage: DraftStage) -> GrammarCompleter:
        return GrammarCompleter(context.vocab_size, tokenizer, FaultGuard("grammar", sink=stage.metrics.fault))

    registry = default_registry()
    if may_stream(settings, registry, context.device):
        stage = build_draft_stage(settings, registry, replace(context, device=HOST), grammars=True)
        if StreamSteps.applies(stage):
            allocator, grammars = SlotAllocator(context.max_slots, HOST, notify), grammars_of(stage)
            drafts = started(lambda: StreamDrafts(stage, allocator.slots, table, grammars, context))
            if drafts is not None:
                return drafts, allocator
        stage.close()
    stage = build_draft_stage(settings, registry, context, grammars=True)
    allocator = SlotAllocator(context.max_slots, context.device, notify)
    by_stage = StageDrafts(stage, table, grammars_of(stage), context.caps, context.vocab_size)
    launches = launches_for(context.device)
    if launches is None or not DeviceSteps.applies(stage):
        return by_stage, allocator
    return DeviceDrafts(by_stage, table, context.vocab_size, allocator.slots, launches), allocator
