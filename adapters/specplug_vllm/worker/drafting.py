"""The worker's half of specplug, shared by both of vLLM's runners: ranks, requests, slots and the draft stage.

Under tensor parallelism rank 0 drafts and broadcasts its drafts to the other ranks.  Every rank verifies its own copy
of the drafts, and drafts that differ between ranks silently give wrong text.  So anything that could differ (a
deadline, an exception, a race, a random draw) happens on rank 0 only.  With ``"draft_ranks": "each"`` every rank drafts
on V2; docs/design.md says why their drafts are equal.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.plugins.registry import default_registry
from specplug.steps.device_step import EngineTensors
from specplug.steps.draft_stage import DraftStage
from specplug.steps.rows import Rows
from specplug.steps.slots import SlotAllocator, Tokens
from specplug.steps.stops import StopDetector
from specplug.types.caps import Distribution
from specplug.types.request import EngineEvent, EngineEventKind
from specplug.types.step import Draft, Outcome, StepPlan
from specplug.types.tensors import to_device
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import plugin_context, require_settings
from specplug_vllm.requests import DraftRules, running_request, tokens_of

Broadcast = Callable[[Tensor], Any]
"""Overwrites a contiguous tensor with rank 0's, without a host sync."""


def ranks() -> tuple[int, Broadcast | None]:
    """Return the tensor-parallel rank, and the broadcast from rank 0 to the others; None without any.

    The broadcast goes through vLLM's warmed-up NCCL communicator if there is one.  The group's own method goes through
    torch's device group, which creates another communicator at its first use, when vLLM has already allocated all
    memory.
    """
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    communicator = group.device_communicator
    nccl = getattr(communicator, "pynccl_comm", None)
    warm = nccl is not None and seams.available("nccl") and not nccl.disabled
    several = group.world_size > 1
    return group.rank_in_group, partial((communicator if warm else group).broadcast, src=0) if several else None


class Drafting:
    """Requests, slots and the draft stage of one worker.

    Args:
        vllm_config: config of a server with specplug enabled.
        device: device of batches and drafts.
        rank: tensor-parallel rank.

    Attributes:
        allocator: slots of the requests that the worker holds.
        plan: plan for the drafts that the newest step makes.  `draft_length` is the length of its rows; caps are the
            policy's.
        scheduled: draft tokens that the newest step verifies, by request id.
        is_idle: whether the newest step neither verifies nor makes drafts.  Then nothing of specplug runs: emitted
            tokens are counted on the host, and proposers ingest them at the next step that drafts.
        text_of: returns the text of a request that starts or resumes, where the scheduler's data lacks it: on V1.
        rules: which requests have drafts.
        distribution_bytes: memory of the draft distributions, the engine's buffer included.
        changes_of_weights: how many changes of weights, one within another, are under way.
        released: the memory that vLLM has released to sleep.
    """

    changes_of_weights = 0

    def __init__(self, vllm_config: Any, device: torch.device, rank: int) -> None:
        resolved = require_settings(vllm_config)
        self.resolved = resolved
        self.rank = rank
        self.device = device
        context = plugin_context(vllm_config, resolved.settings.seed, device=device, rank=rank)
        self.caps = context.caps
        self.vocab_size = context.vocab_size
        self.max_slots = context.max_slots
        self.max_length = context.max_length
        self.rules = DraftRules(vllm_config)
        self.text_of: Callable[[str], Tokens] = lambda _: ()
        self.stage: DraftStage = build_draft_stage(
            resolved.settings, default_registry(), context, grammars=self.rules.runner == "v1"
        )
        self.distribution_bytes = self.stage.distribution_bytes
        self._closing = weakref.finalize(self, self.stage.close)
        self.allocator = SlotAllocator(self.max_slots, device, lambda event: self.stage.on_event(event))
        self.slots = self.allocator.slots
        self.stops = StopDetector(self.max_slots, self.caps.max_draft_length, device)
        self.plan = StepPlan(self.caps.max_draft_length)
        self.scheduled: dict[str, list[int]] = {}
        self.grammars: Mapping[str, step_metadata.Constrained] = {}
        self.is_idle = False
        self.released: frozenset[str] = frozenset()

    def engine_distributions(self, device: torch.device) -> Tensor | None:
        """Allocate [S, K, V] float32 for the draft distributions in the form that the engine's verifier reads.

        Return None if no proposer states distributions, or if the engine can read the proposer's own buffer: V1 reads
        by batch row, V2 by slot.
        """
        stage = self.stage
        shared = device == self.device and not stage.has_draft_vocab and stage.distribution is not Distribution.LOGITS
        if stage.distribution is Distribution.ONE_HOT or shared:
            return None
        buffer = torch.zeros(
            self.max_slots, self.caps.max_draft_length, self.vocab_size, dtype=torch.float32, device=device
        )
        self.distribution_bytes += buffer.nbytes
        return buffer

    # -- requests, called by the hook on a step ------------------------------------------------------------------

    def end_requests(self, scheduler_output: Any, text_of: Callable[[str], tuple[Tensor, int] | None]) -> None:
        """Remove the requests that have ended or are preempted, and notify proposers of engine events.

        Args:
            text_of: returns the engine's token table, and a request's row in it; None if it has none, like a request
                of V1 that was not scheduled in the step before.
        """
        metadata = step_metadata.of(scheduler_output)
        for kind in metadata.events:
            self.on_engine_event(kind)
        for request_id in sorted(scheduler_output.finished_req_ids):
            ending = metadata.endings.get(request_id, step_metadata.Ending())
            if ending.visible is not None and not ending.aborted and (text := text_of(request_id)) is not None:
                self.ingest_end(request_id, *text, ending.visible)
            self.allocator.finish(request_id, aborted=ending.aborted, visible=ending.visible)
        for request_id in sorted(scheduler_output.preempted_req_ids or ()):
            self.allocator.preempt(request_id)

    def start(self, new: Any, cache_salt: str | None) -> None:
        """Add a vLLM `NewRequestData`: a new request, a resumed one, or a known one with a new prompt.

        A request that emits at most one token never drafts, so its prompt is not added.
        """
        if self.allocator.is_waiting(new.req_id):
            self.allocator.resume(new.req_id, tokens_of(new))
            return
        occupant = running_request(new, self.max_length, cache_salt, rules=self.rules)
        if not occupant.tokens:
            occupant = replace(occupant, tokens=self.text_of(new.req_id))
        drafts = occupant.end - occupant.request.prompt_length > 1
        if drafts or new.req_id in self.allocator or occupant.request.options.verifier is not None:
            self.allocator.start(occupant)
        else:
            self.allocator.ignore(new.req_id)

    def on_engine_event(self, kind: EngineEventKind) -> None:
        """Notify every proposer of an engine event."""
        self.stage.on_event(EngineEvent(kind))

    # -- one step ------------------------------------------------------------------------------------------------

    def begin_step(self, scheduler_output: Any) -> None:
        """Add the requests that start or resume with a step, and store its plan and scheduled drafts."""
        metadata = step_metadata.of(scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:  # on V2 also resumed requests
            self.start(new, metadata.cache_salts.get(new.req_id))
        for request_id in getattr(scheduler_output.scheduled_cached_reqs, "resumed_req_ids", ()):  # V1
            self.allocator.resume(request_id, self.text_of(request_id))
        draft_length = min(int(scheduler_output.num_spec_tokens_to_schedule), self.caps.max_draft_length)
        plan = metadata.plan
        if self.caps.verifies_budget and plan.costs:
            plan = replace(plan, costs=())  # they set the budget of the engine's next step: `BudgetManager`
        self.plan = plan if plan.draft_length == draft_length else replace(plan, draft_length=draft_length)
        self.grammars = metadata.grammars
        self.scheduled = scheduler_output.scheduled_spec_decode_tokens
        self.is_idle = step_metadata.is_idle(scheduler_output)

    @property
    def may_skip(self) -> bool:
        """Whether nothing has to run in the newest step: it is idle, and no trace is to be written."""
        return self.is_idle and self.stage.tracer is None

    def count(self, names: Iterable[str], emitted: Iterable[object]) -> None:
        """Count the rows `names` of an idle step; `emitted` is true for those that emitted a token."""
        if self.allocator.ignored:
            emitted = [has for name, has in zip(names, emitted, strict=True) if name not in self.allocator.ignored]
        self.stage.metrics.record_on_host(sum(map(bool, emitted)), planned=False)

    def take(self, rows: Rows, engine: EngineTensors, temperature: Tensor | None = None) -> Draft:
        """Report what the engine's step found to the draft stage, and draft for the rows that may draft.

        Args:
            rows: these rows.
            engine: the engine's tensors of these rows; their token table is indexed by `idx_mapping`.
            temperature: [B] float32; None for that of the requests.
        """
        places = engine.idx_mapping
        emitted = engine.num_sampled
        lengths = engine.total_len[places]
        inputs = engine.all_token_ids, places, lengths
        batch = rows.batch(
            *inputs, self.vocab_size, sampled=emitted > 0, temperature=temperature, engine_ids=engine.engine_ids
        )
        accepted = (emitted - 1).clamp(min=0)
        outcome = Outcome(
            verified=torch.where(emitted > 0, accepted + engine.num_rejected, 0),
            accepted=accepted,
            emitted=emitted,
            after_stop=self.stops.after(rows, *inputs, emitted),
        )
        self.stage.observe(batch, step_metadata.add_grammars(self.grammars, outcome, rows.names, self.scheduled))
        policy = rows.caps_of(self.plan)
        caps = rows.caps if policy is None else torch.minimum(rows.caps, policy)
        draft = self.stage.propose(batch, self.plan.draft_length, caps)
        trimmed = self.stage.trim(batch, draft, self.plan)
        return trimmed.as_one_hot(batch.grammar)  # the scheduler cuts these rows depending on their tokens

    def selected(self, rows: Rows) -> Tensor | None:
        """Return [B] bool: rows whose newest draft tokens the policy, or later the scheduler, selects by their values.

        These are verified as if they were certain, see `Draft.as_one_hot`.  None if there are no such rows.
        """
        if self.stage.needs_trim(len(rows.names), self.plan.draft_length, self.plan):
            return torch.ones_like(rows.grammar)
        return rows.grammar if rows.has_grammar else None

    @torch.inference_mode()
    def ingest_end(self, name: str, table: Tensor, row: int, visible: int) -> None:
        """Let proposers ingest the end of a text before its request leaves its slot.

        Its tokens since the last step with drafts are new to them.

        Args:
            name: the request id.
            table: [R, L] int32, the engine's tokens.
            row: the text's row there.
            visible: tokens of the text that the client got.
        """
        proposers = [runner.handle.caps for runner in self.stage.runners]
        if self.plan.draft_length or name not in self.allocator or not any(it.incremental for it in proposers):
            return
        lengths, places = to_device([torch.tensor([it], dtype=torch.int32) for it in (visible, row)], self.device)
        self.stage.ingest(Rows(self.allocator, [name]).batch(table, places, lengths, self.vocab_size))

    def close(self) -> None:
        """Release proposers, threads and files, once; also called at the end of the process."""
        self._closing()
