"""StreamDrafts: drafts of a proposer on the host, in the engine's stream; see `specplug.runtime.stream_steps`.

One step reports what the engine's last step emitted, and drafts for its next one.  Both must have the same requests in
the same slots, so `flush` reports on its own before a request leaves, and before a batch of other requests drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.grammar.drafts import SOURCE, Completed, separated
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.stream.tensors import DraftOutputs, EngineRows
from specplug.runtime.rows import RowFacts
from specplug.runtime.steps_in_flight import StepInFlight
from specplug.runtime.stream_steps import StreamSteps
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.verdict import Outcome, Verdict
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.drafts import Decoding, Drafts, caps_of, module_of
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.verification.captured import least_captured
from specplug_sglang.verification.table import TokenTable

NOTHING = StepPlan(0)


class _Verified(NamedTuple):
    """A step that verified drafts and is not reported yet.

    Attributes:
        facts, slots, before: as they were in the step.
        emitted: [B], tokens that it emitted.
        cut: by row, what grammars had removed from its drafts.
        stream: the stream that it ran in; None on a CPU.
    """

    facts: RowFacts
    slots: Tensor
    before: Tensor
    emitted: Tensor
    cut: Sequence[int]
    stream: Any


class StreamBuffers(NamedTuple):
    """What steps read and write on the engine's device, in addition to the engine's own tensors.

    Attributes:
        draft: [S, N], the drafts; every step overwrites it.
        ones: [S] int32.
        most: [S] int32, each N.
    """

    draft: Draft
    ones: Tensor
    most: Tensor

    @classmethod
    def allocate(cls, stage: DraftStage, table: TokenTable) -> StreamBuffers:
        """Return buffers for the drafts of a stage, on the token table's device."""
        like, device = stage.runners[0].buffer, table.tokens.device
        draft = Draft.allocate(*like.token_ids.shape, device=device, trees=like.parents is not None)
        ones = torch.ones(draft.batch_size, dtype=torch.int32, device=device)
        return cls(draft, ones, torch.full_like(ones, draft.draft_length))

    def rows(self, table: TokenTable, slots: Tensor, cached: Tensor, emitted: Tensor) -> EngineRows:
        """Wrap the tensors of B rows with `cached` [B] tokens, which lack the newest.

        SGLang verifies whole drafts, so that nothing is lost by calling all other tokens rejected.
        """
        return EngineRows(slots, cached, table.tokens, emitted, self.most, lengths_by_row=True, lacking=1)

    def outputs(self, draft: Draft) -> DraftOutputs:
        """Wrap the tensors of a draft."""
        return DraftOutputs(draft.token_ids, lengths=draft.lengths, parents=draft.parents)


class StreamDrafts(Drafts):
    """See `Drafts`.

    Args:
        stage: the draft stage, on the CPU.
        steps: its steps.
        table: the token table, on the engine's device.
        buffers: what the steps read and write there.
        grammars: completes the drafts.
        caps: the engine's capabilities.
    """

    def __init__(
        self,
        stage: DraftStage,
        steps: StreamSteps,
        table: TokenTable,
        buffers: StreamBuffers,
        grammars: Grammars,
        caps: EngineCaps,
    ) -> None:
        self.stage, self._steps, self._table, self.grammars, self._caps = stage, steps, table, grammars, caps
        self.counts = Counts(stage.metrics, None)
        device = table.tokens.device
        self._buffers, self._reads_lengths, self._module = buffers, device.type == "cpu", module_of(device)
        self._verified: _Verified | None = None

    def propose(self, batch: Decoding, draft_length: int, plan: StepPlan) -> Draft | None:
        """See `Drafts.propose`; waits for the drafts only on a CPU, or if a grammar completes them."""
        planned = plan if plan.draft_length == draft_length else replace(plan, draft_length=draft_length)
        step = self._launch(batch, planned)
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
        draft = self._buffers.draft.view(rows, draft_length)
        self._steps.unpack(step, draft_length, self._buffers.outputs(draft))
        return draft

    def observe(self, batch: Decoding, draft: Draft, accept_lens: Tensor) -> None:
        """See `Drafts.observe`."""
        self.completed = self.grammars.take()
        cut = () if self.completed is None else self.completed.cut
        stream = None if self._module is None else self._module.current_stream()
        self._verified = _Verified(batch.rows.facts, batch.slots, batch.before, accept_lens, cut, stream)

    def idle(self, batch: Decoding) -> None:
        """See `Drafts.idle`."""
        self.flush()
        if not self._steps.skip(batch.rows.facts):
            self._steps.drop(self._launch(batch, NOTHING))

    @torch.inference_mode()
    def flush(self) -> None:
        """See `Drafts.flush`."""
        verified, self._verified = self._verified, None
        if verified is None:
            return
        with self._in(verified.stream):
            after = verified.before + verified.emitted
            rows = self._buffers.rows(self._table, verified.slots, after, verified.emitted)
            self._steps.drop(self._steps.launch(verified.facts, rows, NOTHING, cut_by_grammar=verified.cut))

    def count_grammars(self, completed: Completed, lengths: Tensor, accepted: Sequence[int]) -> None:
        """See `Drafts.count_grammars`.  With a grammar in the batch, no row goes on after its end."""
        if completed.forced is None:
            return
        kept = torch.tensor(accepted, dtype=torch.int32)
        outcome = completed.annotated(Outcome(verified=lengths, accepted=kept, emitted=kept + 1))
        proposed = lengths - completed.forced.lengths + torch.tensor(completed.cut, dtype=torch.int32)
        _, fate, reached = separated(torch.zeros_like(lengths), outcome, Verdict.build(proposed, outcome))
        self.stage.metrics.record_added(SOURCE, fate, reached)

    def close(self) -> None:
        """See `Drafts.close`."""
        self._verified = None
        self._steps.close()

    def _launch(self, batch: Decoding, plan: StepPlan) -> StepInFlight:
        """Report the step before, if it verified drafts of the same requests, and draft."""
        facts, verified = batch.rows.facts, self._verified
        if verified is not None and verified.facts is not facts:
            self.flush()
            verified = None
        self._verified = None
        emitted, cut = (self._buffers.ones, ()) if verified is None else (verified.emitted, verified.cut)
        rows = self._buffers.rows(self._table, batch.slots, batch.before, emitted)
        return self._steps.launch(facts, rows, plan, reports=verified is not None, cut_by_grammar=cut)

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

    def _in(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext() if self._module is None else self._module.stream(stream)
