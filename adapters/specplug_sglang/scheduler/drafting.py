"""The part of specplug's worker that is independent of the forward pass: requests, slots, plans and the draft stage."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings.model import Settings
from specplug.steps.draft_report import NO_DRAFTS
from specplug.steps.slots import SlotAllocator
from specplug.types.request import BEGINS, EngineEvent, EngineEventKind, Event, RequestEvent
from specplug.types.step import Draft
from specplug_sglang.requests import prompt_of, running_request
from specplug_sglang.scheduler.batches import BatchRows
from specplug_sglang.scheduler.device_drafts import build
from specplug_sglang.scheduler.drafts import StageDrafts, module_of
from specplug_sglang.scheduler.endings import visible_tokens
from specplug_sglang.scheduler.planned_steps import LaunchedStep, PlannedSteps, VerifiedStep
from specplug_sglang.verification.trees import TokenTable, on_device


class ProposerDrafting(PlannedSteps):
    """Requests, plans and drafts of one worker; arguments as in `PlannedSteps`.

    SGLang does not notify its worker: a request that finished, was aborted or was retracted is just missing from the
    next batch.  So the `Req` objects are held and checked whenever the batch changes or the engine idles.

    Attributes:
        drafts: how rank 0 drafts; None on other ranks.
        stage, counts: its draft stage and its counters for the status; None on other ranks, which receive its drafts.
        drafts_trees: whether drafts have parents, the same on all ranks.
        reads_lengths: whether the lengths of drafts are in host memory, so that reading them waits for nothing.
        allocator: slots of the requests that the worker holds, which are rows of SGLang's request pool.
        held: the requests that run or may resume, with their retraction counts, by id.
        table: token ids of these requests.
        rows: those of the planned batch.
        length: the newest plan's draft length.
    """

    def __init__(
        self, server_args: Any, model_config: Any, *, slots: int, device: torch.device, rank: int, tokenizer: Any
    ) -> None:
        super().__init__(server_args, model_config, slots=slots, device=device, rank=rank, tokenizer=tokenizer)
        settings = self.resolved.settings
        self.drafts_trees = self.caps.trees and _any_drafts_trees(settings, device.type)
        self.table = TokenTable(slots, self.max_length, self.caps.max_draft_length + 1, device)
        self.reads_lengths = device.type == "cpu"
        self.drafts: StageDrafts | None = None
        # PyTorch's, and the stream of the newest step
        self._module = module_of(device)
        self._stream = None
        if rank == 0:
            self.drafts, self.allocator = build(settings, self.context, self.table, tokenizer, self._tell)
        else:
            self.allocator = SlotAllocator(slots, device, self._tell)
        self.stage = None if self.drafts is None else self.drafts.stage
        self.counts = None if self.drafts is None else self.drafts.counts
        self.held: dict[str, tuple[Any, int]] = {}
        self.allocator.engine_slot = lambda rid: int(self.held[rid][0].kv.req_pool_idx)
        self.rows = BatchRows(self.allocator, (), device)
        self.length = self.caps.max_draft_length
        self._scheduler: weakref.ref[Any] | None = None

    # -- requests and the engine ---------------------------------------------------------------------------------

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler, whose waiting queue is read."""
        self._scheduler = weakref.ref(scheduler)

    def admit(self, reqs: Sequence[Any]) -> None:
        """Assign slots to the requests of a batch; those that have one keep it."""
        self.sweep(reqs)
        for req in reqs:
            held = self.held.get(req.rid)
            if held is not None and held[0] is not req:
                self._end(req.rid, aborted=True)  # the same id, another request
            elif held is not None and held[1] != req.retraction_count:
                self.allocator.preempt(req.rid)
            self.held[req.rid] = (req, req.retraction_count)
            if req.rid not in self.allocator:
                self._take_in(req)

    def sweep(self, batch: Sequence[Any] = ()) -> None:
        """Remove requests that have ended, and preempt those that were retracted; called between two steps.

        Args:
            batch: the requests of the coming step.  Some may have ended, because SGLang may process the previous
                results after it schedules a step.  They are removed at the next sweep.
        """
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        coming = {id(req) for req in batch}
        for rid, (req, _) in list(self.held.items()):
            if id(req) in coming:
                self._move(req)
            elif req.finished():
                self._end(rid, aborted=isinstance(req.finished_reason, FINISH_ABORT))
            elif req.kv.req_pool_idx is None and not self._is_queued(req):
                self._end(rid, aborted=True)  # retracted, and dropped from the queue
            else:
                self._move(req)

    def _is_queued(self, req: Any) -> bool:
        """Return whether a request waits for a slot, new or retracted."""
        scheduler = None if self._scheduler is None else self._scheduler()
        return scheduler is None or req in scheduler.waiting_queue

    def _move(self, req: Any) -> None:
        """Preempt a request whose row has changed, as it was retracted.  A finished request keeps its slot."""
        if req.finished() or req.rid not in self.allocator:
            return
        if req.kv.req_pool_idx != self.allocator.slot_of(req.rid):
            self.allocator.preempt(req.rid)

    def _end(self, rid: str, *, aborted: bool) -> None:
        req, _ = self.held.pop(rid)
        visible = visible_tokens(req)
        if not aborted and visible is not None and len(req.output_ids) > 1:
            self._ingest(req, visible)
        self.allocator.finish(rid, aborted=aborted, visible=visible)
        self.settle()
        self.step_planner.forget([rid])

    def _ingest(self, req: Any, visible: int) -> None:
        """Let proposers ingest what a client saw of a text, `visible` tokens of it, before its request has no slot."""
        if self.drafts is not None and req.rid in self.allocator:
            with self._in_stream():
                self.drafts.ingest(BatchRows(self.allocator, [req], self.device), visible)

    def _take_in(self, req: Any) -> None:
        """Give a request a slot, and write its text there."""
        if self.allocator.is_waiting(req.rid):
            self.allocator.resume(req.rid)
        else:
            self.allocator.start(running_request(req, self.max_length, self.inexact))
        self.table.write(self.allocator.slot_of(req.rid), prompt_of(req))

    def on_engine_event(self, kind: EngineEventKind) -> None:
        """Notify every proposer of requests that have left, then of an engine event."""
        self.sweep()
        self._tell(EngineEvent(kind))

    def _results_of(self, step: LaunchedStep, accepted: Sequence[int], ended: float) -> VerifiedStep | None:
        """Count what counters on the device lack; drafts are the planner's if it learns, by SGLang's `cap_lens`."""
        launched, reqs, result, report = step
        if result is None:
            if self.stage is not None:
                self._count(reqs, [launched.plan.takes_none(req.rid) for req in reqs])
            self._finish(launched, (), ended, report)
            return None
        if not self.step_planner.reads_costs:
            return None
        return VerifiedStep.of(step, [count - 1 for count in result.cap_lens.tolist()], accepted, ended)

    # -- one step ------------------------------------------------------------------------------------------------

    def prefilled(self, reqs: Sequence[Any]) -> None:
        """Count the first tokens of requests, which a prefill emitted."""
        if self.drafts is not None:
            self.drafts.emits_one()
            self._count(reqs, [self.step_planner.is_off or self._bounds(req).cap == 0 for req in reqs])

    def append_first(
        self, reqs: Sequence[Any], whole: Sequence[int], slots: Tensor, lengths: Tensor, tokens: Tensor
    ) -> None:
        """Append the first tokens of requests to their texts, and count them.

        Args:
            reqs: the B requests of a prefill.
            whole: the rows whose prefill is finished; the others are chunks of prompts, whose next token is known.
            slots, lengths, tokens: [B] int64, int64 and int32: the rows' slots, prompts and emitted tokens.
        """
        if len(whole) < len(reqs):
            rows = on_device(whole, torch.int64, self.device)
            slots = slots[rows]
            lengths = lengths[rows]
            tokens = tokens[rows]
        self.table.append_one(slots, lengths, tokens)
        self.prefilled([reqs[row] for row in whole])

    def _count(self, reqs: Sequence[Any], off: Sequence[bool]) -> None:
        """Count a step of requests without drafts; `off` is true for those that could not draft."""
        assert self.stage is not None
        for could_not in (False, True):
            rows = [req for req, is_off in zip(reqs, off, strict=True) if is_off is could_not]
            self.stage.metrics.record_on_host(len(rows), sum(req.finished() for req in rows), planned=not could_not)

    def plan(self, reqs: Sequence[Any]) -> int:
        """Plan a decode step and return its draft length, which covers the longest row.

        With speculation SGLang never mixes prefill into a decode step.
        """
        self._began = perf_counter()
        if self._module is not None:
            self._stream = self._module.current_stream()
        self.settle()
        if not self.rows.hold(self.allocator, reqs):
            self.admit(reqs)
            self.rows = BatchRows(self.allocator, reqs, self.device)
        self.length = self._plan(reqs)
        if self.drafts is not None:
            self.drafts.reports_expected = self.step_planner.wants_report
        return self.length

    def launched(self, reqs: Sequence[Any], draft: Draft | None, result: Any) -> None:
        """Queue a launched step until its results arrive, with SGLang's `result`, which is on the host by then.

        Without drafts, the step's tokens are counted when its results arrive.
        """
        step = self._launch(reqs, 0 if draft is None else draft.draft_length)
        report = NO_DRAFTS
        if self.drafts is not None:
            report = self.drafts.report
            self.drafts.report = NO_DRAFTS
            if draft is None:
                self.drafts.emits_one()
        self._launched.append(LaunchedStep(step, tuple(reqs), None if draft is None else result, report))

    def _tell(self, event: Event) -> None:
        if self.drafts is not None:
            with self._in_stream():
                if isinstance(event, RequestEvent) and event.kind not in BEGINS:
                    self.drafts.flush()
                self.drafts.stage.on_event(event)

    def _in_stream(self) -> AbstractContextManager[Any]:
        """Return a context for what follows the newest step on a device: SGLang may be in another stream by now."""
        return nullcontext() if self._stream is None else self._module.stream(self._stream)


def _any_drafts_trees(settings: Settings, device: str) -> bool:
    specs = (default_registry().get(ProposerSpec, name) for name in (settings.proposer, *settings.extra_proposers))
    return any(spec.caps_for(device).trees for spec in specs)
