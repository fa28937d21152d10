"""The step pipeline: what every adapter calls, in the same order, whatever its engine.

    plan     PlanStage.plan          host, in the scheduler's process or inline
    propose  DraftStage.propose      device: ingest, draft, make safe
    trim     DraftStage.trim         device: cut to the token budget
    verify   the engine's, or a specplug verifier
    observe  DraftStage.observe      device: verdict to metrics, trace and proposers

The two stages share no memory.  Everything that a plug-in does wrong ends here: see `specplug.containment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specplug.buffers import DraftBuffers
from specplug.containment import FaultGuard
from specplug.handles import ProposerHandle
from specplug.inflight import InFlight
from specplug.interfaces import Planner, Trimmer
from specplug.metrics import SpecMetrics
from specplug.sanitize import sanitize
from specplug.trace import TraceWriter, rows_from
from specplug.types.batch import BatchView
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import NO_SPECULATION, HostStats, StepPlan
from specplug.types.request import Event, Lifecycle, RequestEvent
from specplug.types.verdict import Outcome, Verdict

_SLOT_BEGINS = (Lifecycle.STARTED, Lifecycle.STARTED_DECODE_SIDE, Lifecycle.RESUMED, Lifecycle.UPDATED)


class PlanStage:
    """The host half.  A planner that raises plans no speculation, which is never slower than the engine alone."""

    def __init__(self, planner: Planner, caps: EngineCaps, guard: FaultGuard, *, ceiling: int | None = None) -> None:
        self._planner, self._caps, self._guard = planner, caps, guard
        self.ceiling = ceiling
        """The operator's limit on the width, changeable while serving; 0 switches speculation off, None is no limit."""

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the plan of a step, its width fitted to what the engine can run."""
        plans: list[StepPlan] = []
        if self._guard.admits_step():
            self._guard.step(lambda: plans.append(self._planner.plan(stats)))
        plan = plans[0] if plans else NO_SPECULATION
        width = plan.width if self.ceiling is None else min(plan.width, self.ceiling)
        return replace(plan, width=self._caps.fit_width(width))


class DraftStage:
    """The device half: proposers, trimmer and what flows back to them.

    Args:
        handles: the proposers, the server's default first; requests may name another one of them.
        guards: one per handle.
        trimmer: the policy's trim half, with its guard.
        caps: what the engine can do.
        max_slots: S.
        vocab_size: V, of the buffers for full distributions, which are allocated here, once.
        device: where batches and drafts lie.
        metrics: what is counted.
        trace: where drafts and verdicts are written, or None.  Tracing reads back every step.
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
        self._handles, self._guards = tuple(handles), tuple(guards)
        self._trimmer, self._trimmer_guard = trimmer, trimmer_guard
        self._caps, self._device = caps, device
        self.metrics, self._trace = metrics, trace
        self._buffers = DraftBuffers(self._handles, caps, max_slots, vocab_size, device)
        trees = caps.trees and any(handle.spec.caps.trees for handle in self._handles)
        self._in_flight = InFlight(max_slots, caps.max_width, device, trees=trees)
        self._ingested = torch.zeros(len(self._handles), max_slots, dtype=torch.int32, device=device)
        self._generations = torch.full((max_slots,), -1, dtype=torch.int64, device=device)
        self._chosen = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._names = {handle.spec.name: index for index, handle in enumerate(self._handles)}
        self._steps = 0

    @property
    def sources(self) -> tuple[str, ...]:
        """What `Draft.source` points into: the sources of all proposers, in order."""
        return self._buffers.sources

    def propose(self, batch: BatchView, width: int, caps: Tensor | None = None) -> Draft:
        """Let every proposer ingest the batch, and return drafts of at most `width` tokens; `caps` [B] bounds rows.

        At width 0 proposers only ingest.  Dummy steps touch nothing.  The draft lies in a buffer that the next call
        overwrites.
        """
        draft = self._buffers.merged(batch, width)
        if batch.is_dummy or not batch.batch_size:
            return draft
        self._forget_old_generations(batch)
        limits = batch.limits(width, caps)
        chosen = self._chosen[batch.slots.long()]
        for index in range(len(self._handles)):
            mine = torch.where(chosen == index, limits, 0)
            part = self._buffers.part(index, batch, width)
            self._step_one(index, batch, mine if width else None, part)
            sanitize(part, mine, batch.vocab_size)
            self._buffers.merge(draft, index, part)
        return draft if self._caps.trees else draft.as_chain()

    def trim(self, batch: BatchView, draft: Draft, token_budget: int | None) -> Draft:
        """Cut the drafts to the budget (None: no limit) and remember them until their verdict."""
        if batch.is_dummy or not batch.batch_size:
            return draft
        if token_budget is not None and token_budget < draft.batch_size * draft.width:
            budget = torch.full((), max(0, token_budget), dtype=torch.int64, device=draft.device)
            cut: list[Draft] = []
            if self._trimmer_guard.call(lambda: cut.append(self._trimmer.trim(draft, budget))):
                draft = cut[0]
            else:
                draft.clear()
        self._in_flight.put(batch, draft)
        return draft

    def observe(self, batch: BatchView, outcome: Outcome) -> Verdict:
        """Join an engine's report with the drafts that it is about, and let everyone learn from it.

        `batch` is the batch after the verification, `outcome` is in its row order.
        """
        draft = self._in_flight.take(batch, outcome.emitted, self.sources)
        verdict = Verdict.build(draft.lengths, outcome)
        self.metrics.record(draft, verdict)
        if self._trace is not None:
            for row in rows_from(self._steps, batch, draft, verdict):
                self._trace.write(row)
        for handle, guard in zip(self._handles, self._guards, strict=True):
            if not guard.is_off:
                _contain(guard, handle, "observe", batch, draft, verdict)
        self._steps += 1
        return verdict

    def on_event(self, event: Event) -> None:
        """Tell every proposer, and note which of them a request chose."""
        if isinstance(event, RequestEvent) and event.kind in _SLOT_BEGINS:
            name = event.request.options.proposer
            self._chosen[event.slot] = self._names.get(name or "", 0)
        for handle, guard in zip(self._handles, self._guards, strict=True):
            _contain(guard, handle, "on_event", event)

    def close(self) -> None:
        """Release proposers and the trace."""
        for handle, guard in zip(self._handles, self._guards, strict=True):
            guard.call(handle.close)
        if self._trace is not None:
            self._trace.close()

    def _step_one(self, index: int, batch: BatchView, limits: Tensor | None, draft: Draft) -> None:
        """Run one proposer, contained.  Each token is handed to it once; those of steps that it sits out wait for it."""
        handle, guard = self._handles[index], self._guards[index]
        if not guard.admits_step():
            return
        slots = batch.slots.long()
        new = (batch.lengths - self._ingested[index, slots]).clamp(min=0)
        self._ingested[index, slots] = batch.lengths
        batch = replace(batch, num_new=new)
        if not guard.step(lambda: handle.step(batch, limits, None if limits is None else draft)):
            draft.clear()

    def _forget_old_generations(self, batch: BatchView) -> None:
        slots = batch.slots.long()
        fresh = self._generations[slots] != batch.generations
        self._ingested[:, slots] = torch.where(fresh, 0, self._ingested[:, slots])
        self._generations[slots] = batch.generations


def _contain(guard: FaultGuard, handle: ProposerHandle, method: str, *args: object) -> None:
    guard.call(lambda: getattr(handle, method)(*args))
