"""The part of specplug's worker that is independent of the forward pass: requests, slots, plans and the draft stage."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.faults import FaultGuard
from specplug.interfaces import PluginContext, TargetModel
from specplug.pipeline.draft import DraftStage
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.requests import wire
from specplug.runtime.rows import RowFacts
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.slots import SlotRows
from specplug.runtime.step_planner import Bounds, Launched, StepPlanner
from specplug.runtime.stops import StopDetector
from specplug.settings.model import Settings
from specplug.types.batch import EngineBatch, Residency
from specplug.types.draft import Draft
from specplug.types.request import EngineEvent, EngineEventKind, Event
from specplug.types.verdict import Outcome
from specplug_sglang.config import engine_caps, resolved
from specplug_sglang.requests import prompt_of, running_request, served_plainly
from specplug_sglang.scheduler.arrivals import Arrivals
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.verification.table import TokenTable, on_device


class Drafting:
    """Requests, plans and drafts of one worker.

    Args:
        server_args: arguments of a server with specplug enabled.
        model_config: the target's.
        slots: S, rows of SGLang's request pool.
        device: device of batches and drafts.
        rank: tensor-parallel rank.
        tokenizer: the target's, or None.

    Attributes:
        stage: the draft stage on rank 0; None on other ranks, which receive rank 0's drafts.
        drafts_trees: whether drafts have parents, the same on all ranks.
        counts: draft counters for the status, on rank 0; None on other ranks.
        step_planner: makes the plans.
        allocator: slots of the requests that the worker holds.
        table: token ids of these requests.
    """

    def __init__(
        self, server_args: Any, model_config: Any, *, slots: int, device: torch.device, rank: int, tokenizer: Any
    ) -> None:
        self.resolved, self.caps = resolved(server_args), engine_caps(server_args)
        self.rank, self.device = rank, device
        self.vocab_size, self.max_length = int(model_config.vocab_size), int(model_config.context_len)
        context = PluginContext(
            caps=self.caps,
            vocab_size=self.vocab_size,
            max_slots=slots,
            max_length=self.max_length,
            device=device,
            rank=rank,
            seed=self.resolved.settings.seed,
            target=TargetModel(model_config.model_path, model_config.hf_config, tokenizer),
        )
        leads = rank == 0
        self.stage: DraftStage | None = (
            build_draft_stage(self.resolved.settings, default_registry(), context, grammars=True) if leads else None
        )
        sink = None if self.stage is None else self.stage.metrics.fault
        self.counts = None if self.stage is None else Counts(self.stage.metrics, _module_of(device))
        self.grammars = None if sink is None else Grammars(self.vocab_size, tokenizer, FaultGuard("grammar", sink=sink))
        self.drafts_trees = self.caps.trees and _any_drafts_trees(self.resolved.settings, device.type)
        self.step_planner: StepPlanner[Any] = StepPlanner(self.resolved, context, _measure, self._bounds)
        self.allocator = SlotAllocator(slots, device, self._tell)
        self.table = TokenTable(slots, self.max_length, self.caps.max_draft_length + 1, device)
        self.arrivals = Arrivals(
            self.allocator, lambda req: running_request(req, self.max_length), self._write, self._forget
        )
        self.stops = StopDetector(slots, self.caps.max_draft_length, device)
        self._rows: _Rows | None = None
        self._launched: deque[tuple[Launched, tuple[str, ...], Tensor | None]] = deque()
        self._began, self._prefills = 0.0, False
        self._scheduler: weakref.ref[Any] | None = None

    # -- requests and the engine ---------------------------------------------------------------------------------

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler, whose waiting queue is read."""
        self._scheduler = weakref.ref(scheduler)
        self.arrivals.queues = lambda req: req in self._queue()

    def sweep(self) -> None:
        """Notify proposers of requests that have left; called between two steps."""
        self.arrivals.sweep()

    def on_engine_event(self, kind: EngineEventKind) -> None:
        """Notify every proposer of requests that have left, then of an engine event."""
        self.sweep()
        if self.stage is not None:
            self.stage.on_event(EngineEvent(kind))

    def verified(self, accepted: Sequence[int]) -> None:
        """Report a step's accepted counts per row to the planner.  SGLang calls this in step order, one step late.

        SGLang has waited for the step's results by then, and the draft lengths were copied to the host before them.
        """
        ended = perf_counter()
        if not self._launched:
            return
        step, names, lengths = self._launched.popleft()
        if len(names) != len(accepted):  # a step that the worker did not see
            self._launched.clear()
            return
        verified = [0] * len(names) if lengths is None else lengths.tolist()
        self.step_planner.finish(step, [*zip(names, verified, accepted, strict=True)], ended)

    # -- one step ------------------------------------------------------------------------------------------------

    def admit(self, reqs: Sequence[Any]) -> None:
        """Assign slots to the requests of a prefill batch."""
        self._prefills = True
        self.arrivals.admit(reqs)

    def plan(self, reqs: Sequence[Any]) -> int:
        """Plan a decode step and return its draft length, which covers the longest row."""
        self._began = perf_counter()
        if self._rows is None or not self._rows.hold(self.allocator, reqs):
            self.arrivals.admit(reqs)
        # With speculation SGLang never mixes prefill into a decode step.
        plan = self.step_planner.make(reqs, num_waiting=len(self._queue()), prefill_tokens=0)
        draft_length = plan.draft_length
        if plan.caps and draft_length:
            widest = max((plan.draft_length_for(req.rid) for req in reqs), default=0)
            draft_length = next((step for step in self.caps.captured_draft_lengths if step >= widest), widest)
        return min(draft_length, plan.draft_length)

    def propose(self, batch: EngineBatch, reqs: Sequence[Any], draft_length: int) -> Draft:
        """Draft, cut the drafts to the plan's budget and complete them by their grammars."""
        assert self.stage is not None
        plan = self.step_planner.plan
        caps = self._caps_of(plan, reqs)
        draft = self.stage.trim(batch, self.stage.propose(batch, draft_length, caps), plan)
        assert self.grammars is not None
        return self.grammars.of(batch, reqs, draft, caps, plan.token_budget)

    def launched(self, reqs: Sequence[Any], draft: Draft) -> None:
        """Queue a launched step until its results arrive, and start copying its draft lengths to the host."""
        rows, draft_length = len(reqs), draft.draft_length
        # A prefill queued before the step may still be running when the step begins, so the step is not timed.
        step = self.step_planner.launch(
            self._began, rows, rows * (draft_length + 1), draft_length, timed=not self._prefills
        )
        self._prefills = False
        lengths = draft.lengths.to("cpu", non_blocking=True, copy=True) if draft_length else None
        self._launched.append((step, tuple(req.rid for req in reqs), lengths))

    def observe(self, batch: EngineBatch, outcome: Outcome) -> None:
        """Report a verified step to the draft stage; `batch` is the state after it."""
        if self.stage is not None and self.grammars is not None:
            self.stage.observe(batch, self.grammars.annotated(outcome))
            assert self.counts is not None
            self.counts.step()

    def view(self, reqs: Sequence[Any], slots: Tensor, lengths: Tensor, sampled: Tensor | None = None) -> EngineBatch:
        """Describe a batch.

        Args:
            reqs: B requests.
            slots: [B] int64, their rows in SGLang's request pool.
            lengths: [B], known tokens of each.
            sampled: [B] bool, false for prefill chunks with more prompt to come; None if there are none.
        """
        if self._rows is None or not self._rows.hold(self.allocator, reqs):
            self._rows = _Rows(self.allocator, reqs, self.device)
        rows = self._rows
        lengths = lengths.to(torch.int32)
        return EngineBatch(
            slots=slots,
            generations=rows.table.generations,
            rows=slots,
            tokens=self.table.tokens,
            lengths=lengths,
            sampled=rows.all if sampled is None else sampled,
            room=rows.table.ends - lengths,
            temperature=rows.temperature,
            grammar=rows.table.grammar,
            vocab_size=self.vocab_size,
            residency=Residency.HOST if self.device.type == "cpu" else Residency.DEVICE,
            reset_slots=self.allocator.slots.take_resets(),
            barriers=rows.facts.barriers,
            request_ids=rows.facts.names,
            requests=rows.facts.requests,
        )

    def after_stop(self, batch: EngineBatch, emitted: Tensor) -> Tensor:
        """Return [B] int32: how many of the `emitted` [B] newest tokens come after a stop."""
        assert self._rows is not None
        return self.stops.after(batch.tokens, batch.rows, batch.slots, batch.lengths, emitted, self._rows.table)

    def close(self) -> None:
        """Release proposers, threads and files."""
        if self.stage is not None:
            self.stage.close()

    def _caps_of(self, plan: Any, reqs: Sequence[Any]) -> Tensor | None:
        """Return the most draft tokens per row, [B] int32 on the device; None if no row is capped."""
        if not plan.caps:
            return None
        return on_device([plan.draft_length_for(req.rid) for req in reqs], torch.int32, self.device)

    def _bounds(self, req: Any) -> Bounds:
        params = req.sampling_params
        most = self.max_length if params.max_new_tokens is None else int(params.max_new_tokens)
        cap = 0 if served_plainly(req) is not None else wire.decode(params.custom_params)[0].cap
        return Bounds(min(len(req.origin_input_ids) + most, self.max_length), cap)

    def _write(self, req: Any, slot: int) -> None:
        self.table.write(slot, prompt_of(req))

    def _forget(self, rid: str) -> None:
        self.step_planner.forget([rid])

    def _queue(self) -> Sequence[Any]:
        """Return the requests that wait for a slot, new and retracted ones."""
        scheduler = None if self._scheduler is None else self._scheduler()
        return () if scheduler is None else scheduler.waiting_queue

    def _tell(self, event: Event) -> None:
        if self.stage is not None:
            self.stage.on_event(event)


class _Rows:
    """Row data of a batch, cached while the same requests hold the same slots."""

    def __init__(self, allocator: SlotAllocator, reqs: Sequence[Any], device: torch.device) -> None:
        self.facts = RowFacts(allocator, [req.rid for req in reqs])
        self.table: SlotRows = allocator.slots.rows(on_device(self.facts.slots, torch.int64, device))
        temperatures = [request.sampling.temperature for request in self.facts.requests]
        self.temperature = on_device(temperatures, torch.float32, device)
        self.all = torch.ones(len(temperatures), dtype=torch.bool, device=device)

    def hold(self, allocator: SlotAllocator, reqs: Sequence[Any]) -> bool:
        """Return whether these are still the rows of `reqs`."""
        return self.facts.hold(allocator, [req.rid for req in reqs])


def _any_drafts_trees(settings: Settings, device: str) -> bool:
    specs = (default_registry().get(ProposerSpec, name) for name in (settings.proposer, *settings.extra_proposers))
    return any(spec.caps_for(device).trees for spec in specs)


def _module_of(device: torch.device) -> Any:
    """Return PyTorch's module of a device with queued execution; None if the device has no queue."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)


def _measure(req: Any) -> tuple[str, int]:
    return req.rid, len(req.origin_input_ids) + len(req.output_ids)
