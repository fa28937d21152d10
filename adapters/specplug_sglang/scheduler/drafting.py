"""Requests, slots, plans and results of one worker's steps: what is independent of the forward pass."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.cost.store import StartCosts
from specplug.counts import MetricsSnapshot
from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.operator import startup
from specplug.operator.server_planner import ServerPlanner
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.steps.device_steps import launches_for
from specplug.steps.draft_report import NO_DRAFTS
from specplug.steps.outcome_counts import OutcomeCounts
from specplug.steps.rows import Rows
from specplug.steps.slots import SlotAllocator
from specplug.steps.step_planner import Bounds
from specplug.types.request import BEGINS, EngineEvent, EngineEventKind, Event, RequestEvent
from specplug.types.tensors import on_device
from specplug_sglang.config import drafter, engine_caps, least_captured, resolved, rows_of_pool, use_of
from specplug_sglang.requests import bounds_of, finished_prefills, prompt_of, running_request, text_length
from specplug_sglang.scheduler.drafts import Drafts
from specplug_sglang.scheduler.endings import visible_tokens
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.scheduler.results import Results
from specplug_sglang.verification.trees import TokenTable


class Drafting:
    """Requests, plans and results of one worker.

    SGLang does not notify its worker: a request that finished, was aborted or was retracted is just missing from the
    next batch.  So the `Req` objects are held and checked whenever the batch changes or the engine idles.  Results
    arrive in step order, one step late.

    Args:
        server_args: arguments of a server with specplug enabled.
        target_worker: SGLang's.
        ranks: the tensor-parallel ranks.
        inexact: features, see `inexact_feature`, with which a request gets no drafts; None for all of them.

    Attributes:
        drafts, stage: how rank 0 drafts; None on other ranks, which receive its drafts, and beside `outcomes`.
        table: token ids of the requests that are held; None beside `outcomes`.
        method, outcomes: algorithm and counts of SGLang's own drafter where it alone drafts; otherwise "" and None.
        drafts_trees: whether drafts have parents, the same on all ranks.
        reads_lengths: whether the lengths of drafts are in host memory, so that reading them waits for nothing.
        allocator: slots of the requests that the worker holds, which are rows of SGLang's request pool.
        held: the requests that run or may resume, with their retraction counts, by id.
        rows: those of the planned batch.
        length: the newest plan's draft length.
        results: of the steps.
        start_costs: what steps cost, as far as it is known before the first request.
    """

    @startup.told_by_parent(direct=True)  # SGLang's controller of data parallelism would wait for ever
    def __init__(
        self, server_args: Any, target_worker: Any, ranks: RankGroup, inexact: Sequence[str] | None = None
    ) -> None:
        model_config = target_worker.model_runner.model_config
        self.resolved = resolved(server_args)
        self.caps = engine_caps(server_args)
        self.ranks = ranks
        self.rank = ranks.rank
        self.device = torch.device(target_worker.model_runner.device)
        self.vocab_size = int(model_config.vocab_size)
        self.max_length = int(model_config.context_len)
        self._inexact = inexact
        context = self._context(rows_of_pool(server_args), model_config, getattr(target_worker, "tokenizer", None))
        self.step_planner: ServerPlanner[Any] = ServerPlanner(
            self.resolved, context, attrgetter("rid"), text_length, self._bounds
        )
        self.start_costs = StartCosts()
        self.allocator = SlotAllocator(context.max_slots, self.device, self._tell)
        self.allocator.engine_slot = lambda rid: int(self.held[rid][0].kv.req_pool_idx)
        self.held: dict[str, tuple[Any, int]] = {}
        self.rows = Rows(self.allocator, ())
        self.length = self.caps.max_draft_length
        self.method = drafter(server_args).lower() if use_of(server_args) == "engine" else ""
        self.outcomes = OutcomeCounts(self.method, self.length) if self.method else None
        self.table: TokenTable | None = None
        if not self.method:
            self.table = TokenTable(context.max_slots, self.max_length, self.length + 1, self.device)
        self.drafts = self._drafts_of(context)
        self.stage = None if self.drafts is None else self.drafts.stage
        settings = self.resolved.settings
        self.drafts_trees = self.caps.trees and any(
            default_registry().get(ProposerSpec, name).caps_for(self.device.type).trees
            for name in (settings.proposer, *settings.extra_proposers)
        )
        self.reads_lengths = self.table is not None and self.device.type == "cpu"
        self._agrees = not (ranks.is_alone or self.reads_lengths)
        self._scheduler: weakref.ref[Any] | None = None
        # PyTorch's, and the stream of the newest step
        self._module = module_of(self.device)
        self._stream = None
        self._began = 0.0
        self.results = Results(self.step_planner, self.stage, self.outcomes)

    def _context(self, max_slots: int, model_config: Any, tokenizer: Any) -> PluginContext:
        return PluginContext(
            caps=self.caps,
            vocab_size=self.vocab_size,
            max_slots=max_slots,
            max_length=self.max_length,
            device=self.device,
            rank=self.rank,
            seed=self.resolved.settings.seed,
            target_path=model_config.model_path,
            target_config=model_config.hf_config,
            target_tokenizer=tokenizer,
        )

    def _drafts_of(self, context: PluginContext) -> Drafts | None:
        if self.table is None or self.rank:
            return None
        return Drafts(
            build_draft_stage(self.resolved.settings, default_registry(), context, grammars=True),
            self.table,
            self.allocator.slots,
            self.caps,
            self.vocab_size,
            tokenizer=context.target_tokenizer,
            launches=launches_for(self.device),
        )

    # -- requests and the engine ---------------------------------------------------------------------------------

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler, whose waiting queue is read."""
        self._scheduler = weakref.ref(scheduler)

    def refuse_larger_pool(self, pool: Any) -> None:
        """Refuse a request pool with more rows than there are slots (`EngineError`)."""
        rows = pool.req_to_token.shape[0]
        slots = len(self.allocator.slots.generations)
        if rows > slots:
            raise EngineError.build(
                "SGLang's request pool is larger than its settings say",
                who="specplug_sglang",
                found=f"{rows} rows",
                expected=f"at most {slots}",
                remedy="Set --max-running-requests",
            )

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
        scheduler = None if self._scheduler is None else self._scheduler()
        return scheduler is None or req in scheduler.waiting_queue

    def _move(self, req: Any) -> None:
        """Preempt a request whose row has changed, as it was retracted.  A finished request keeps its slot."""
        if req.finished() or req.rid not in self.allocator:
            return
        if req.kv.req_pool_idx != self.allocator.slot_of(req.rid):
            self.allocator.preempt(req.rid)

    def _end(self, rid: str, *, aborted: bool) -> None:
        """Drop a request, once proposers have what a client saw of its text."""
        req, _ = self.held.pop(rid)
        visible = None
        if self.drafts is not None:
            visible = visible_tokens(req)
            if visible is not None and not aborted and rid in self.allocator and len(req.output_ids) > 1:
                with self._in_stream():
                    self.drafts.ingest(Rows(self.allocator, [rid]), visible)
        self.allocator.finish(rid, aborted=aborted, visible=visible)
        self.results.settle()
        self.step_planner.forget([rid])

    def _take_in(self, req: Any) -> None:
        if self.allocator.is_waiting(req.rid):
            self.allocator.resume(req.rid)
        else:
            self.allocator.start(running_request(req, self.max_length, self._inexact))
        if self.table is not None:
            self.table.write(self.allocator.slot_of(req.rid), prompt_of(req))

    def on_engine_event(self, kind: EngineEventKind) -> None:
        """Notify every proposer of requests that have left, then of an engine event."""
        self.sweep()
        self._tell(EngineEvent(kind))

    def _tell(self, event: Event) -> None:
        if self.drafts is not None:
            with self._in_stream():
                if isinstance(event, RequestEvent) and event.kind not in BEGINS:
                    self.drafts.flush()
                self.drafts.stage.on_event(event)

    def _in_stream(self) -> AbstractContextManager[Any]:
        """Return a context for what follows the newest step on a device: SGLang may be in another stream by now."""
        return nullcontext() if self._stream is None else self._module.stream(self._stream)

    def _bounds(self, req: Any) -> Bounds:
        return bounds_of(req, self.max_length, self._inexact)

    # -- prefills --------------------------------------------------------------------------------------------------

    def prefill(self, reqs: Sequence[Any]) -> None:
        """Prepare for a prefill.  Proposers read prompts at the first step that drafts."""
        self.results.has_prefilled = True
        self.admit(reqs)

    def append_first(self, reqs: Sequence[Any], slots: Tensor, lengths: Tensor, tokens: Tensor) -> None:
        """Append the first tokens of requests to their texts, and count them.

        Rows that are chunks of prompts are left out: their next token is known.

        Args:
            reqs: the B requests of a prefill.
            slots, lengths, tokens: [B] int64, int64 and int32: the rows' slots, prompts and emitted tokens.
        """
        whole = finished_prefills(reqs)
        if self.table is not None:
            if len(whole) < len(reqs):
                rows = on_device(whole, torch.int64, self.device)
                slots, lengths, tokens = (each[rows] for each in (slots, lengths, tokens))
            self.table.append_one(slots, lengths, tokens)
        if self.drafts is not None:
            self.drafts.note_single_tokens()
        complete = [reqs[row] for row in whole]
        self.results.count(complete, [self.step_planner.is_off or self._bounds(req).cap == 0 for req in complete])

    # -- one step --------------------------------------------------------------------------------------------------

    def plan(self, reqs: Sequence[Any]) -> int:
        """Plan a decode step and return its draft length, which covers the longest row; rank 0's where ranks agree.

        With speculation SGLang never mixes prefill into a decode step.
        """
        self._began = perf_counter()
        if self._module is not None:
            self._stream = self._module.current_stream()
        self.results.settle()
        if not self.rows.are_of(reqs):
            self.admit(reqs)
            self.rows = Rows(self.allocator, [req.rid for req in reqs], reqs)
        plan = self.step_planner.make(reqs)
        length = plan.draft_length
        if plan.caps and length:  # a captured length that covers the longest row
            longest = max(plan.draft_length_for(req.rid) for req in reqs)
            length = min(least_captured(self.caps, longest), length)
        self.length = self.ranks.agree(length) if self._agrees else length
        if self.drafts is not None:
            self.drafts.report = NO_DRAFTS
            self.drafts.reports_expected = self.step_planner.wants_report
        return self.length

    def add_launched(self, reqs: Sequence[Any], draft_length: int, result: Any) -> None:
        """Queue a launched step until its results arrive; see `Results.add`."""
        report = NO_DRAFTS
        if self.drafts is not None:
            report = self.drafts.report
            if not draft_length:
                self.drafts.note_single_tokens()
        self.results.add(self._began, reqs, draft_length, result, report)

    def counts(self) -> MetricsSnapshot:
        """Return the counts of a rank that drafts, or of SGLang's own drafter; on a GPU this waits for queued steps."""
        self.results.settle()
        if self.outcomes is not None:
            return self.outcomes.snapshot({})
        assert self.stage is not None
        with self._in_stream():
            return self.stage.metrics.snapshot()


def module_of(device: torch.device) -> Any:
    """Return PyTorch's module of a device with queued execution; None if the device has no queue."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)
