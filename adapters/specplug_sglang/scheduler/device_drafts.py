"""Drafts between two kernels, and the choice of how rank 0 drafts.

One step reports what the engine's last step emitted, and drafts for its next one.  The report needs the same requests
in the same slots, so it is made on its own before a request leaves, and before a batch of other requests drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.faults import FaultGuard
from specplug.interfaces import PluginContext
from specplug.plugins.registry import default_registry
from specplug.settings.model import Settings
from specplug.steps.device_steps import DeviceSteps
from specplug.steps.draft_stage import DraftStage
from specplug.steps.engine_rows import DraftOutputs, EngineRows
from specplug.steps.kernels.columns import Launches, launches_for
from specplug.steps.slots import SlotAllocator, SlotTable
from specplug.types.caps import EngineCaps
from specplug.types.request import Event
from specplug.types.step import NO_SPECULATION, Draft, StepPlan
from specplug_sglang.scheduler.batches import BatchRows, Decoding
from specplug_sglang.scheduler.drafts import StageDrafts
from specplug_sglang.scheduler.grammar import GrammarCompleter
from specplug_sglang.verification.trees import TokenTable


class _Unreported(NamedTuple):
    """A step that verified drafts: its batch before it, and tokens emitted [B]."""

    batch: Decoding
    emitted: Tensor


class DeviceDrafts(StageDrafts):
    """Drafts of a stage on the engine's device, in one kernel before its proposer and one after it.

    The stage itself, with which all state is shared, takes the steps of batches with grammars.
    """

    def __init__(
        self,
        stage: DraftStage,
        table: TokenTable,
        grammars: GrammarCompleter,
        caps: EngineCaps,
        vocab_size: int,
        *,
        slots: SlotTable,
        launches: Launches,
    ) -> None:
        super().__init__(stage, table, grammars, caps, vocab_size)
        self._ones = torch.ones(len(table.tokens), dtype=torch.int32, device=self._device)
        by_row = self._ones.long()
        most = torch.full_like(self._ones, caps.max_draft_length)
        engine_ids = by_row.new_zeros(len(by_row), stage.engine_tokens) if stage.engine_tokens else None
        # SGLang verifies whole drafts, so that nothing is lost by calling all other tokens rejected.
        self._rows = EngineRows(by_row, by_row, table.tokens, self._ones, most, True, 1, engine_ids)
        self._unreported: _Unreported | None = None
        self._padding = table.tokens[:, 0]  # nothing reads what drafts are padded with
        self._nothing = torch.empty(len(table.tokens), 0, device=self._device)
        like = self._rows, self._outputs(0), self._padding
        self._steps = DeviceSteps(stage, slots, self.stops, vocab_size, launches, like=like)

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        if batch.is_constrained:
            self.flush()
            return super().propose(batch, draft_length, plan)
        planned = plan if plan.draft_length == draft_length else replace(plan, draft_length=draft_length)
        draft = self._next(batch, planned)
        return None if self._has_no_tail() else self._fitted(draft, draft.lengths)

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        if batch.is_constrained:
            super().observe(batch, draft, accept_lens)
        else:
            self._unreported = _Unreported(batch, accept_lens)

    def idle(self, batch: Decoding) -> None:
        if self.reports_expected and self._may_report:
            self._next(batch, NO_SPECULATION)
        else:
            self.flush()

    @torch.inference_mode()
    def flush(self) -> None:
        step = self._unreported
        self._unreported = None
        if step is not None:
            slots = step.batch.slots
            after = step.batch.before + step.emitted
            rows = self._rows._replace(idx_mapping=slots, total_len=after, num_sampled=step.emitted)
            self._take(step.batch.rows, rows, NO_SPECULATION, reports=True)

    def ingest(self, rows: BatchRows, length: int) -> None:
        self.flush()
        super().ingest(rows, length)

    def close(self) -> None:
        self._unreported = None
        super().close()

    def _next(self, batch: Decoding, plan: StepPlan) -> Draft:
        """Take a batch's step, which reports the step before if that had the same rows."""
        if self._unreported is not None and self._unreported.batch.rows is not batch.rows:
            self.flush()
        step = self._unreported
        self._unreported = None
        emitted = self._ones if step is None else step.emitted
        rows = self._rows._replace(idx_mapping=batch.slots, total_len=batch.before, num_sampled=emitted)
        if batch.engine_ids is not None:
            rows = rows._replace(engine_ids=batch.engine_ids)
        due = self.reports_expected and self._may_report
        draft = self._take(batch.rows, rows, plan, reports=step is not None, reports_expected=due)
        self.report = self._steps.report
        return draft

    def _take(self, of: BatchRows, rows: EngineRows, plan: StepPlan, **reports: bool) -> Draft:
        outputs = self._outputs(len(of.facts.names))
        draft = self._steps.take(of.facts, rows, outputs, self._padding, of.temperature, plan, **reports)
        if reports["reports"]:
            self.counts.step()
        return draft

    def _outputs(self, rows: int) -> DraftOutputs:
        """Return outputs without columns: verification reads the drafts themselves."""
        return DraftOutputs(self._nothing[:rows], self._nothing[:rows])


def build(
    settings: Settings, context: PluginContext, table: TokenTable, tokenizer: Any, notify: Callable[[Event], None]
) -> tuple[StageDrafts, SlotAllocator]:
    """Return how to draft, and the slots of requests, which lie where the draft stage does.

    The target's `tokenizer` may be None; `notify` is called with the slots' events.
    """
    stage = build_draft_stage(settings, default_registry(), context, grammars=True)
    allocator = SlotAllocator(context.max_slots, context.device, notify)
    grammars = GrammarCompleter(context.vocab_size, tokenizer, FaultGuard("grammar", sink=stage.metrics.fault))
    given: Any = stage, table, grammars, context.caps, context.vocab_size
    launches = launches_for(context.device)
    if launches is None or not DeviceSteps.applies(stage):
        return StageDrafts(*given), allocator
    return DeviceDrafts(*given, slots=allocator.slots, launches=launches), allocator
