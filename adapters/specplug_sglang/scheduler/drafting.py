"""The part of specplug's worker that is independent of the forward pass: requests, slots, plans and the draft stage."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
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
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.step_planner import Bounds, Launched, StepPlanner
from specplug.runtime.stops import StopDetector
from specplug.settings.model import Settings
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.request import EngineEvent, EngineEventKind, Event
from specplug.types.verdict import Outcome
from specplug_sglang.config import engine_caps, resolved
from specplug_sglang.requests import prompt_of, running_request, served_plainly
from specplug_sglang.scheduler.arrivals import Arrivals
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.scheduler.rows import Rows
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
        reads_lengths: whether the lengths of drafts are in host memory, so that reading them waits for nothing.
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
        self.step_planner: StepPlanner[Any] = StepPlanner(
            self.resolved, context, attrgetter("rid"), _measure, self._bounds
        )
        self.allocator = SlotAllocator(slots, device, self._tell)
        self.table = TokenTable(slots, self.max_length, self.caps.max_draft_length + 1, device)
        self.arrivals = Arrivals(
            self.allocator, lambda req: running_request(req, self.max_length), self._write, self._forget
        )
        self.stops = StopDetector(slots, self.caps.max_draft_length, device)
        self.reads_lengths = device.type == "cpu"
        self._rows: Rows | None = None
        self._unseen = False  # whether tokens were emitted that the stop detector has not seen
        self._launched: deque[tuple[Launched, tuple[Any, ...], Tensor | None]] = deque()
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
        step, reqs, lengths = self._launched.popleft()
        if len(reqs) != len(accepted):  # a step that the worker did not see
            self._launched.clear()
            return
        if lengths is None:
            if self.stage is not None:
                self.stage.metrics.record_on_host(len(reqs), sum(req.finished() for req in reqs))
            self.step_planner.finish(step, (), ended)
            return
        names = [req.rid for req in reqs]
        self.step_planner.finish(step, [*zip(names, lengths.tolist(), accepted, strict=True)], ended)

    # -- one step ------------------------------------------------------------------------------------------------

    def admit(self, reqs: Sequence[Any]) -> None:
        """Assign slots to the requests of a prefill batch."""
        self._prefills = True
        self.arrivals.admit(reqs)

    def prefilled(self, rows: int) -> None:
        """Count the first tokens of `rows` requests, which a prefill emitted."""
        self._unseen = True
        if self.stage is not None:
            self.stage.metrics.record_on_host(rows)

    def plan(self, reqs: Sequence[Any]) -> int:
        """Plan a decode step and return its draft length, which covers the longest row."""
        self._began = perf_counter()
        if self._rows is None or not self._rows.hold(self.allocator, reqs):
            self.arrivals.admit(reqs)
            self._rows = Rows(self.allocator, reqs, self.device)
        # With speculation SGLang never mixes prefill into a decode step.
        plan = self.step_planner.make(reqs, num_waiting=len(self._queue()), prefill_tokens=0)
        if not plan.caps or not plan.draft_length:
            return plan.draft_length
        return min(self._captured(max(plan.draft_length_for(req.rid) for req in reqs)), plan.draft_length)

    def propose(self, reqs: Sequence[Any], slots: Tensor, before: Tensor, draft_length: int) -> Draft | None:
        """Draft, cut the drafts to the plan's budget and complete them by their grammars.

        Args:
            reqs: B requests.
            slots: [B] int64, their rows in SGLang's request pool.
            before: [B] int64, cached tokens of each, which lack the newest.
            draft_length: the most draft tokens of a row, above 0.

        Returns:
            Drafts of as many tokens, or where `reads_lengths` of the least number that the engine captured and that
            holds them all.  None if nothing is drafted.
        """
        assert self.stage is not None
        assert self.grammars is not None
        batch, plan = self.view(slots, before + 1), self.step_planner.plan
        caps = self._caps_of(plan, reqs)
        draft = self.stage.propose(batch, draft_length, caps)
        constrained = any(req.grammar is not None for req in reqs)
        if self.reads_lengths and not constrained and not draft.lengths.any():
            return None
        draft = self.stage.trim(batch, draft, plan)
        proposed = draft.lengths
        if constrained:
            draft = self.grammars.of(batch, reqs, draft, caps, plan.token_budget)
        if not self.reads_lengths:
            return draft
        # What a grammar cut must be reported with a step of drafts, even if it cut everything.
        longest = max(int(draft.lengths.max()), int(proposed.any()))
        if not longest:
            self.grammars.drop()
            return None
        return draft.view(draft.batch_size, min(self._captured(longest), draft_length))

    def launched(self, reqs: Sequence[Any], draft: Draft | None) -> None:
        """Queue a launched step until its results arrive, and start copying its draft lengths to the host.

        Without drafts, the step's tokens are counted when its results arrive.
        """
        rows, draft_length = len(reqs), 0 if draft is None else draft.draft_length
        # A prefill queued before the step may still be running when the step begins, so the step is not timed.
        context = sum(map(_measure, reqs))
        step = self.step_planner.launch(
            self._began, rows, rows * (draft_length + 1), context, draft_length, timed=not self._prefills
        )
        self._prefills = False
        self._unseen = self._unseen or draft is None
        lengths = None if draft is None else draft.lengths.to("cpu", non_blocking=True, copy=True)
        self._launched.append((step, tuple(reqs), lengths))

    def observe(self, reqs: Sequence[Any], slots: Tensor, before: Tensor, draft: Draft, accept_lens: Tensor) -> None:
        """Report a step that verified drafts to the draft stage; the table has its tokens already.

        Args:
            reqs, slots, before: as in `propose`.
            draft: the verified drafts.
            accept_lens: [B], emitted tokens.
        """
        if self.stage is None or self.grammars is None or self.counts is None:
            return
        if self._unseen:  # the host knows all ends but those of the step before, which emitted one token per row
            self._unseen = False
            self.after_stop(self.view(slots, before + 1), torch.ones_like(slots, dtype=torch.int32))
        emitted = accept_lens.to(torch.int32)
        batch = self.view(slots, before + 1 + emitted)
        outcome = Outcome(
            verified=draft.lengths,
            accepted=emitted - 1,
            emitted=emitted,
            after_stop=self.after_stop(batch, emitted),
        )
        self.stage.observe(batch, self.grammars.annotated(outcome))
        self.counts.step()

    def view(self, slots: Tensor, lengths: Tensor) -> EngineBatch:
        """Describe the batch that was planned for, with `lengths` [B] known tokens; `slots` [B] as in `propose`."""
        assert self._rows is not None
        return self._rows.view(self.table.tokens, slots, lengths, self.vocab_size)

    def after_stop(self, batch: EngineBatch, emitted: Tensor) -> Tensor:
        """Return [B] int32: how many of the `emitted` [B] newest tokens come after a stop."""
        assert self._rows is not None
        return self.stops.after(batch.tokens, batch.rows, batch.slots, batch.lengths, emitted, self._rows.table)

    def close(self) -> None:
        """Release proposers, threads and files."""
        if self.stage is not None:
            self.stage.close()

    def _captured(self, longest: int) -> int:
        """Return the least draft length that the engine captured and that holds `longest` tokens."""
        return next((length for length in self.caps.captured_draft_lengths if length >= longest), longest)

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


def _any_drafts_trees(settings: Settings, device: str) -> bool:
    specs = (default_registry().get(ProposerSpec, name) for name in (settings.proposer, *settings.extra_proposers))
    return any(spec.caps_for(device).trees for spec in specs)


def _module_of(device: torch.device) -> Any:
    """Return PyTorch's module of a device with queued execution; None if the device has no queue."""
    return None if device.type in ("cpu", "meta") else torch.get_device_module(device)


def _measure(req: Any) -> int:
    return len(req.origin_input_ids) + len(req.output_ids)
