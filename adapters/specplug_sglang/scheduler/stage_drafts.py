"""StageDrafts: drafts of a stage that takes its steps itself, on the engine's device or on threads of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.pipeline.draft import DraftStage
from specplug.runtime.stops import StopDetector
from specplug.types.batch import EngineBatch
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.verdict import Outcome
from specplug_sglang.config import least_captured
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.drafts import Decoding, Drafts, caps_of, module_of
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.verification.table import TokenTable, on_device


class StageDrafts(Drafts):
    """See `Drafts`.

    Args:
        stage: the draft stage, on the engine's device.
        table: the token table.
        grammars: completes the drafts.
        caps: the engine's capabilities.
        vocab_size: V.

    Attributes:
        stops: the detector of stops.
    """

    def __init__(
        self, stage: DraftStage, table: TokenTable, grammars: Grammars, caps: EngineCaps, vocab_size: int
    ) -> None:
        self.stage, self._table, self.grammars, self._caps = stage, table, grammars, caps
        self._device, self._vocab_size = table.tokens.device, vocab_size
        self.counts = Counts(stage.metrics, module_of(self._device))
        self.stops = StopDetector(table.tokens.shape[0], caps.max_draft_length, self._device)
        self._reads_lengths = self._device.type == "cpu"
        self._unseen = False  # whether tokens were emitted that the stop detector has not seen

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """See `Drafts.propose`."""
        reqs, view, caps = batch.reqs, self._view(batch, batch.before + 1), caps_of(plan, batch.reqs)
        most = None if caps is None else on_device(caps, torch.int32, self._device)
        draft = self.stage.propose(view, draft_length, most)
        constrained = any(req.grammar is not None for req in reqs)
        if self._reads_lengths and not constrained and not draft.lengths.any():
            return None
        draft = self.stage.trim(view, draft, plan)
        proposed = draft.lengths
        if constrained:
            draft = self.grammars.of(view, reqs, draft, most, plan.token_budget)
        return self.fitted(draft, proposed)

    def fitted(self, draft: Draft, proposed: Tensor) -> Draft | None:
        """Shorten a draft on a CPU to the captured length that holds its rows; None if nothing is drafted.

        What a grammar cut must be reported with a step of drafts, even if it cut everything of `proposed` [B] tokens.
        """
        if not self._reads_lengths:
            return draft
        longest = max(int(draft.lengths.max()), int(proposed.any()))
        if not longest:
            self.grammars.drop()
            return None
        return draft.view(draft.batch_size, min(least_captured(self._caps, longest), draft.draft_length))

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """See `Drafts.observe`."""
        if self._unseen:  # the host knows all ends but those of the step before, which emitted one token per row
            self._unseen = False
            self._after_stop(batch, batch.before + 1, torch.ones_like(batch.slots, dtype=torch.int32))
        emitted = accept_lens.to(torch.int32)
        lengths = batch.before + 1 + emitted
        outcome = Outcome(
            verified=draft.lengths,
            accepted=emitted - 1,
            emitted=emitted,
            after_stop=self._after_stop(batch, lengths, emitted),
        )
        self.stage.observe(self._view(batch, lengths), self.grammars.annotated(outcome))
        self.counts.step()

    def emits_one(self) -> None:
        """See `Drafts.emits_one`."""
        self._unseen = True

    def _view(self, batch: Decoding, lengths: Tensor) -> EngineBatch:
        """Describe the batch with `lengths` [B] known tokens."""
        return batch.rows.view(self._table.tokens, batch.slots, lengths, self._vocab_size)

    def _after_stop(self, batch: Decoding, lengths: Tensor, emitted: Tensor) -> Tensor:
        """Return [B] int32: how many of the `emitted` [B] newest of `lengths` [B] tokens come after a stop."""
        slots, lengths = batch.slots, lengths.to(torch.int32)
        return self.stops.after(self._table.tokens, slots, slots, lengths, emitted, batch.rows.table)
