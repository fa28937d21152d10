"""StreamDrafts: drafts of a proposer on the host, in the engine's stream; see `specplug.runtime.stream_steps`.

One step reports what the engine's last step emitted, and drafts for its next one; see `unreported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specplug.grammar.drafts import SOURCE, Completed, verdict_on_forced
from specplug.interfaces import PluginContext
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.stream.tensors import DraftOutputs, EngineRows
from specplug.runtime.slots import SlotTable
from specplug.runtime.steps_in_flight import StepInFlight
from specplug.runtime.stream_steps import StreamSteps
from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION, StepPlan
from specplug.types.verdict import Outcome
from specplug_sglang.config import least_captured
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.drafts import Decoding, Drafts, caps_of
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.scheduler.unreported import Unreported, Verified
from specplug_sglang.verification.table import TokenTable


class StreamDrafts(Drafts):
    """See `Drafts`.

    Args:
        stage: the draft stage, on the CPU.
        slots: the table of slots, there too.
        table: the token table, on the engine's device.
        grammars: completes the drafts.
        context: the context that plug-ins are built with.
    """

    def __init__(
        self, stage: DraftStage, slots: SlotTable, table: TokenTable, grammars: Grammars, context: PluginContext
    ) -> None:
        self.stage, self.grammars, self._caps = stage, grammars, context.caps
        self.counts = Counts(stage.metrics, None)
        like, device = stage.runners[0].buffer, table.tokens.device
        self._reads_lengths = device.type == "cpu"
        self._draft = Draft.allocate(*like.token_ids.shape, device=device, trees=like.parents is not None)
        self._unreported = Unreported(table, like.draft_length, self._report)
        types = self._unreported.like, _outputs(self._draft)
        self._steps = StreamSteps(stage, slots, context.max_length, context.vocab_size, device, like=types)

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """See `Drafts.propose`; waits for the drafts only on a CPU, or if a grammar completes them."""
        found: list[Draft | None] = []
        if self._steps.attempt(batch.rows.facts, lambda: found.append(self._propose(batch, draft_length, plan))):
            return found[0]
        self.grammars.drop()
        return None

    def _propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        planned = plan if plan.draft_length == draft_length else replace(plan, draft_length=draft_length)
        step = self._launch(batch, planned)
        self.late = step.late
        rows, longest = len(batch.reqs), draft_length
        if any(req.grammar is not None for req in batch.reqs):
            longest = self._complete(batch, step, draft_length, plan)
        elif self._reads_lengths:
            longest = self._steps.longest(step)
        if not longest:
            self._steps.drop(step)
            return None
        if self._reads_lengths:
            draft_length = min(least_captured(self._caps, longest), draft_length)
        draft = self._draft.view(rows, draft_length)
        self._steps.unpack(step, draft_length, _outputs(draft))
        return draft

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """See `Drafts.observe`."""
        self.completed = self.grammars.take()
        self._unreported.store(batch, accept_lens, () if self.completed is None else self.completed.cut)

    def idle(self, batch: Decoding) -> None:
        """See `Drafts.idle`."""
        self.flush()
        facts = batch.rows.facts
        if not self._steps.skip(facts):
            self._steps.attempt(facts, lambda: self._steps.drop(self._launch(batch, NO_SPECULATION)))

    def flush(self) -> None:
        """See `Drafts.flush`."""
        self._unreported.flush()

    def count_grammars(self, completed: Completed, lengths: Tensor, accepted: Sequence[int]) -> None:
        """See `Drafts.count_grammars`.  With a grammar in the batch, no row goes on after its end."""
        if completed.forced is None:
            return
        kept = torch.tensor(accepted, dtype=torch.int32)
        outcome = completed.annotated(Outcome(verified=lengths, accepted=kept, emitted=kept + 1))
        self.stage.metrics.record_added(SOURCE, *verdict_on_forced(outcome))

    def close(self) -> None:
        """See `Drafts.close`."""
        self._unreported.drop()
        self._steps.close()

    def _launch(self, batch: Decoding, plan: StepPlan) -> StepInFlight:
        """Report the step before, if it verified drafts of the same requests, and draft."""
        rows, verified = self._unreported.take(batch)
        cut = () if verified is None else verified.cut
        return self._steps.launch(batch.rows.facts, rows, plan, reports=verified is not None, cut_by_grammar=cut)

    def _report(self, verified: Verified, rows: EngineRows) -> None:
        facts = verified.batch.rows.facts

        def step() -> None:
            self._steps.drop(self._steps.launch(facts, rows, NO_SPECULATION, cut_by_grammar=verified.cut))

        self._steps.attempt(facts, step)

    def _complete(self, batch: Decoding, step: StepInFlight, draft_length: int, plan: StepPlan) -> int:
        """Let grammars complete a step's drafts; return the tokens of the longest."""
        view, draft = self._steps.drafts(step, draft_length)
        caps = caps_of(plan, batch.reqs)
        most = None if caps is None else torch.tensor(caps, dtype=torch.int32)
        proposed = bool(draft.lengths.any())
        draft.copy_(self.grammars.of(view, batch.reqs, draft, most, plan.token_budget))
        # What a grammar cut must be reported with a step of drafts, even if it cut everything.
        longest = max(int(draft.lengths.max()), int(proposed))
        if not longest:
            self.grammars.drop()
        return longest


def _outputs(draft: Draft) -> DraftOutputs:
    return DraftOutputs(draft.token_ids, lengths=draft.lengths, parents=draft.parents)
