"""DeviceDrafts: drafts of a stage on the engine's device, in one kernel before its proposer and one after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specplug.pipeline.device.columns import Launches
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.runtime.device_steps import DeviceSteps
from specplug.runtime.slots import SlotTable
from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION, StepPlan
from specplug_sglang.scheduler.drafts import Decoding, Drafts
from specplug_sglang.scheduler.rows import Rows
from specplug_sglang.scheduler.stage_drafts import StageDrafts
from specplug_sglang.scheduler.unreported import Unreported, Verified
from specplug_sglang.verification.table import TokenTable


class DeviceDrafts(Drafts):
    """See `Drafts`.  Steps of batches with grammars are the stage's, which shares all state.

    Args:
        by_stage: drafts of a stage that `DeviceSteps` applies to, on the engine's device.
        table: the token table.
        vocab_size: V.
        slots: the table of slots.
        launches: the kernels of the device.
    """

    def __init__(
        self, by_stage: StageDrafts, table: TokenTable, vocab_size: int, slots: SlotTable, launches: Launches
    ) -> None:
        self.stage, self.grammars, self.counts = by_stage.stage, by_stage.grammars, by_stage.counts
        self._by_stage = by_stage
        self._unreported = Unreported(table, self.stage.runners[0].buffer.draft_length, self._report)
        self._padding = table.tokens[:, 0]  # nothing reads what drafts are padded with
        self._nothing = torch.empty(len(table.tokens), 0, device=table.tokens.device)
        self._steps = DeviceSteps(
            self.stage,
            slots,
            by_stage.stops,
            vocab_size,
            launches,
            like=(self._unreported.like, self._outputs(0), self._padding),
        )

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """See `Drafts.propose`."""
        if _is_constrained(batch):
            self.flush()
            return self._by_stage.propose(batch, draft_length, plan)
        rows, verified = self._unreported.take(batch)
        draft = self._step(batch.rows, rows, replace(plan, draft_length=draft_length), reports=verified is not None)
        return self._by_stage.fitted(draft, draft.lengths)

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """See `Drafts.observe`."""
        if _is_constrained(batch):
            self._by_stage.observe(batch, draft, accept_lens)
        else:
            self._unreported.store(batch, accept_lens)

    def idle(self, batch: Decoding) -> None:
        """See `Drafts.idle`."""
        self.flush()

    def emits_one(self) -> None:
        """See `Drafts.emits_one`."""
        self._by_stage.emits_one()

    def flush(self) -> None:
        """See `Drafts.flush`."""
        self._unreported.flush()

    def close(self) -> None:
        """See `Drafts.close`."""
        self._unreported.drop()
        self._by_stage.close()

    def _report(self, verified: Verified, rows: EngineRows) -> None:
        self._step(verified.batch.rows, rows, NO_SPECULATION, reports=True)

    def _step(self, of: Rows, rows: EngineRows, plan: StepPlan, *, reports: bool) -> Draft:
        outputs = self._outputs(len(of.facts.names))
        draft = self._steps.take(of.facts, rows, outputs, self._padding, of.temperature, plan, reports=reports)
        if reports:
            self.counts.step()
        return draft

    def _outputs(self, rows: int) -> DraftOutputs:
        """Return outputs without columns: verification reads the drafts themselves."""
        return DraftOutputs(self._nothing[:rows], self._nothing[:rows])


def _is_constrained(batch: Decoding) -> bool:
    return any(req.grammar is not None for req in batch.reqs)
