"""The part of specplug's worker that is independent of the forward pass: requests, slots, plans and the draft stage."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.grammar.drafts import Completed
from specplug.interfaces import PluginContext, TargetModel
from specplug.pipeline.draft import DraftStage
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ProposerSpec
from specplug.requests import wire
from specplug.runtime.running_request import RunningRequest
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.step_planner import UNREPORTED, Bounds, Launched, StepPlanner
from specplug.settings.model import Settings
from specplug.types.draft import Draft
from specplug.types.request import BEGINS, EngineEvent, EngineEventKind, Event, RequestEvent
from specplug_sglang.config import engine_caps, least_captured, resolved
from specplug_sglang.requests import running_request, served_plainly, text_length
from specplug_sglang.scheduler.arrivals import Arrivals
from specplug_sglang.scheduler.build import build
from specplug_sglang.scheduler.counts import Counts
from specplug_sglang.scheduler.drafts import Decoding, Drafts
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.scheduler.rows import Rows
from specplug_sglang.scheduler.stream_drafts import StreamDrafts
from specplug_sglang.scheduler.unsettled import Unsettled
from specplug_sglang.verification.table import TokenTable


class _Launched(NamedTuple):
    """A launched step whose results have not arrived.

    Attributes:
        step: what the planner knows of it.
        reqs: its requests.
        lengths: [B] int32 on the host, tokens of the verified drafts; None without drafts.
        completed: what grammars made of the drafts, if it is still to be counted.
        late: the requests that could not draft, to be read once the results have arrived.
    """

    step: Launched
    reqs: tuple[Any, ...]
    lengths: Tensor | None
    completed: Completed | None
    late: Iterable[str]


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
        drafts: how rank 0 drafts; None on other ranks.
        drafts_trees: whether drafts have parents, the same on all ranks.
        reads_lengths: whether the lengths of drafts are in host memory, so that reading them waits for nothing.
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
        self.drafts_trees = self.caps.trees and _any_drafts_trees(self.resolved.settings, device.type)
        self.step_planner: StepPlanner[Any] = StepPlanner(
            self.resolved, context, attrgetter("rid"), text_length, self._bounds
        )
        self.table = TokenTable(slots, self.max_length, self.caps.max_draft_length + 1, device)
        self.reads_lengths = device.type == "cpu"
        self.drafts: Drafts | None = None
        if rank == 0:
            self.drafts, self.allocator = build(self.resolved.settings, context, self.table, tokenizer, self._tell)
        else:
            self.allocator = SlotAllocator(slots, device, self._tell)
        self.arrivals = Arrivals(self.allocator, self._describe, self.table.write, self._forget)
        self._rows: Rows | None = None
        self._launched: deque[_Launched] = deque()
        self._unsettled: Unsettled | None = None
        self._began, self._prefills = 0.0, False
        self._scheduler: weakref.ref[Any] | None = None

    @property
    def stage(self) -> DraftStage | None:
        """The draft stage on rank 0; None on other ranks, which receive rank 0's drafts."""
        return None if self.drafts is None else self.drafts.stage

    @property
    def grammars(self) -> Grammars | None:
        """What completes rank 0's drafts; None on other ranks."""
        return None if self.drafts is None else self.drafts.grammars

    @property
    def counts(self) -> Counts | None:
        """Draft counters for the status, on rank 0; None on other ranks."""
        return None if self.drafts is None else self.drafts.counts

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
        self._settle()
        if not self._launched:
            return
        step, reqs, lengths, completed, late = self._launched.popleft()
        if len(reqs) != len(accepted):  # a step that the worker did not see
            self._launched.clear()
            return
        if lengths is None:
            if self.stage is not None:
                self._count(reqs, [step.plan[2].takes_none(req.rid) for req in reqs])
            self.step_planner.finish(step, (), ended, late=tuple(late))
            return
        if completed is not None and self.drafts is not None:
            self.drafts.count_grammars(completed, lengths, accepted)
        self._unsettled = Unsettled.of(step, ended, reqs, lengths.tolist(), accepted, late)

    def _settle(self) -> None:
        """Report the newest verified step to the planner, as its ends are known by now."""
        step, self._unsettled = self._unsettled, None
        if step is not None:
            self.step_planner.finish(step.launched, step.fates(step.received()), step.ended, late=step.late)

    # -- one step ------------------------------------------------------------------------------------------------

    def admit(self, reqs: Sequence[Any]) -> None:
        """Assign slots to the requests of a prefill batch."""
        self._prefills = True
        self.arrivals.admit(reqs)

    def prefilled(self, reqs: Sequence[Any]) -> None:
        """Count the first tokens of requests, which a prefill emitted."""
        if self.drafts is not None:
            self.drafts.emits_one()
            self._count(reqs, [self.step_planner.is_off or self._bounds(req).cap == 0 for req in reqs])

    def _count(self, reqs: Sequence[Any], off: Sequence[bool]) -> None:
        """Count a step of requests without drafts; `off` is true for those that could not draft."""
        assert self.stage is not None
        for could_not in (False, True):
            rows = [req for req, is_off in zip(reqs, off, strict=True) if is_off is could_not]
            self.stage.metrics.record_on_host(len(rows), sum(req.finished() for req in rows), planned=not could_not)

    def plan(self, reqs: Sequence[Any]) -> int:
        """Plan a decode step and return its draft length, which covers the longest row."""
        self._began = perf_counter()
        self._settle()
        if self._rows is None or not self._rows.hold(self.allocator, reqs):
            self.arrivals.admit(reqs)
            self._rows = Rows(self.allocator, reqs, self.device)
        # With speculation SGLang never mixes prefill into a decode step.
        plan = self.step_planner.make(reqs)
        if not plan.caps or not plan.draft_length:
            return plan.draft_length
        return min(least_captured(self.caps, max(plan.draft_length_for(req.rid) for req in reqs)), plan.draft_length)

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
        assert self.drafts is not None
        return self.drafts.propose(self._decoding(reqs, slots, before), draft_length, self.step_planner.plan)

    def idle(self, reqs: Sequence[Any], slots: Tensor, before: Tensor) -> None:
        """Prepare for a step that does not draft; arguments as in `propose`."""
        if self.drafts is not None:
            self.drafts.idle(self._decoding(reqs, slots, before))

    def launched(self, reqs: Sequence[Any], draft: Draft | None) -> None:
        """Queue a launched step until its results arrive, and start copying its draft lengths to the host.

        Without drafts, the step's tokens are counted when its results arrive.
        """
        rows, draft_length = len(reqs), 0 if draft is None else draft.draft_length
        step = UNREPORTED
        if not self.step_planner.is_off:
            # A prefill queued before the step may still be running when the step begins, so the step is not timed.
            context, timed = sum(map(text_length, reqs)), not self._prefills
            step = self.step_planner.launch(
                self._began, rows, rows * (draft_length + 1), context, draft_length, timed=timed
            )
        self._prefills = False
        lengths = None if draft is None else draft.lengths.to("cpu", non_blocking=True, copy=True)
        completed: Completed | None = None
        late: Iterable[str] = ()
        if self.drafts is not None:
            completed, self.drafts.completed = self.drafts.completed, None
            late, self.drafts.late = self.drafts.late, ()
            if draft is None:
                self.drafts.emits_one()
        self._launched.append(_Launched(step, tuple(reqs), lengths, completed, late))

    def observe(self, reqs: Sequence[Any], slots: Tensor, before: Tensor, draft: Draft, accept_lens: Tensor) -> None:
        """Report a step that verified drafts to the draft stage; the table has its tokens already.

        Args:
            reqs, slots, before: as in `propose`.
            draft: the verified drafts.
            accept_lens: [B], emitted tokens.
        """
        if self.drafts is not None:
            self.drafts.observe(self._decoding(reqs, slots, before), draft, accept_lens)

    def close(self) -> None:
        """Release proposers, threads and files."""
        if self.drafts is not None:
            self.drafts.close()

    def _decoding(self, reqs: Sequence[Any], slots: Tensor, before: Tensor) -> Decoding:
        assert self._rows is not None
        return Decoding(reqs, self._rows, slots, before)

    def _bounds(self, req: Any) -> Bounds:
        params = req.sampling_params
        most = self.max_length if params.max_new_tokens is None else int(params.max_new_tokens)
        cap = 0 if served_plainly(req) is not None else wire.decode(params.custom_params)[0].cap
        return Bounds(min(len(req.origin_input_ids) + most, self.max_length), cap)

    def _describe(self, req: Any, text: npt.NDArray[np.int64]) -> RunningRequest:
        """Convert a `Req`, with its `text` [n] if steps in a stream take it in."""
        described = running_request(req, self.max_length)
        return replace(described, tokens=text) if isinstance(self.drafts, StreamDrafts) else described

    def _forget(self, rid: str) -> None:
        self._settle()
        self.step_planner.forget([rid])

    def _queue(self) -> Sequence[Any]:
        """Return the requests that wait for a slot, new and retracted ones."""
        scheduler = None if self._scheduler is None else self._scheduler()
        return () if scheduler is None else scheduler.waiting_queue

    def _tell(self, event: Event) -> None:
        if self.drafts is not None:
            if isinstance(event, RequestEvent) and event.kind not in BEGINS:
                self.drafts.flush()
            self.drafts.stage.on_event(event)


def _any_drafts_trees(settings: Settings, device: str) -> bool:
    specs = (default_registry().get(ProposerSpec, name) for name in (settings.proposer, *settings.extra_proposers))
    return any(spec.caps_for(device).trees for spec in specs)
