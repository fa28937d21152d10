"""A worker's half of specplug, the same for both of vLLM's runners: requests in slots, and the draft stage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.pipeline.stages import DraftStage
from specplug.registry import default_registry
from specplug.types.batch import BatchView
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.request import EngineEvent, EngineEventKind, Lifecycle, Request, RequestEvent
from specplug.types.verdict import Outcome
from specplug_vllm import notes
from specplug_vllm.asked import engine_caps, resolved
from specplug_vllm.requests import Resident, resident
from specplug_vllm.slots import SlotTable
from specplug_vllm.stops import StopWatch


class Drafting:
    """Requests, slots and the draft stage of one worker.

    Args:
        vllm_config: of a server that asked for specplug.
        device: where batches and drafts lie.
        rank: tensor-parallel rank.

    Attributes:
        width: most draft tokens that the newest step asks for.
        token_budget: most draft tokens that its batch may verify; None is no limit.
        scheduled: by request id, draft tokens that the newest step verifies.
    """

    def __init__(self, vllm_config: Any, device: torch.device, rank: int) -> None:
        found = resolved(vllm_config)
        if found is None:
            raise EngineError.build("this server did not ask for specplug", who="specplug_vllm")
        self.resolved, self.rank, self.device = found, rank, device
        self.caps: EngineCaps = engine_caps(vllm_config)
        self.vocab_size: int = vllm_config.model_config.get_vocab_size()
        self.max_slots: int = vllm_config.scheduler_config.max_num_seqs
        self.max_length: int = vllm_config.model_config.max_model_len
        self.stage: DraftStage = build_draft_stage(found.settings, default_registry(), self._context(vllm_config))
        self.slots = SlotTable(self.max_slots, device)
        self.stops = StopWatch(self.max_slots, self.caps.max_width, device)
        self.width = self.caps.max_width
        self.token_budget: int | None = None
        self.scheduled: dict[str, list[int]] = {}
        self._places: dict[str, int] = {}
        self._waiting: dict[str, Resident] = {}
        self.place_of: Any = None
        """Called with a request id, returns the engine's own slot; None where we give out slots."""
        self._free = list(range(self.max_slots - 1, -1, -1))

    # -- requests, told by the lifecycle hook --------------------------------------------------------------------

    def start(self, new: Any, cache_salt: str | None) -> None:
        """Take in a vLLM `NewRequestData`: a new request, one that resumes, or a known one with a new prompt."""
        name = new.req_id
        if name in self._waiting:
            self.resume(name)
        elif name in self._places:
            self._vacate(name)
            self._settle(Lifecycle.UPDATED, resident(new, self.max_length, cache_salt))
        else:
            self._settle(Lifecycle.STARTED, resident(new, self.max_length, cache_salt))

    def resume(self, request_id: str) -> None:
        """Give a preempted request a place again."""
        tenant = self._waiting.pop(request_id, None)
        if tenant is not None:
            self._settle(Lifecycle.RESUMED, tenant)

    def preempt(self, request_id: str) -> None:
        """Take a request's place; it may resume."""
        if request_id in self._places:
            self._waiting[request_id] = self._leave(request_id, Lifecycle.PREEMPTED)

    def finish(self, request_id: str, *, aborted: bool) -> None:
        """Forget a request."""
        self._waiting.pop(request_id, None)
        if request_id in self._places:
            self._leave(request_id, Lifecycle.ABORTED if aborted else Lifecycle.FINISHED)

    def on_engine_event(self, kind: EngineEventKind) -> None:
        """Tell every proposer what happened to the engine."""
        self.stage.on_event(EngineEvent(kind))

    def slot_of(self, request_id: str) -> int:
        """Return a running request's slot."""
        return self._places[request_id]

    def request_of(self, request_id: str) -> Request:
        """Return a running request's description."""
        return self.slots.tenants[self._places[request_id]].request

    # -- one step ------------------------------------------------------------------------------------------------

    def begin_step(self, scheduler_output: Any) -> None:
        """Note what the scheduler asks of this step."""
        self.width = min(int(scheduler_output.num_spec_tokens_to_schedule), self.caps.max_width)
        self.token_budget = notes.of(scheduler_output).token_budget
        self.scheduled = scheduler_output.scheduled_spec_decode_tokens

    def step(self, batch: BatchView, outcome: Outcome, caps: Tensor) -> Draft:
        """Learn from the step that was verified, and draft for the next.  `caps` [B] int32 bounds each row."""
        self.stage.observe(batch, outcome)
        draft = self.stage.propose(batch, self.width, caps)
        return self.stage.trim(batch, draft, self.token_budget)

    def close(self) -> None:
        """Release proposers, threads and files."""
        self.stage.close()

    # -- places --------------------------------------------------------------------------------------------------

    def _settle(self, kind: Lifecycle, tenant: Resident) -> None:
        name = tenant.request.request_id
        slot = self._free.pop() if self.place_of is None else self.place_of(name)
        self._places[name] = slot
        self._tell(kind, tenant, slot, self.slots.take(slot, tenant))

    def _leave(self, name: str, kind: Lifecycle) -> Resident:
        slot = self._places[name]
        tenant = self.slots.tenants[slot]
        self._tell(kind, tenant, slot, self.slots.generations[slot])
        self._vacate(name)
        return tenant

    def _vacate(self, name: str) -> None:
        slot = self._places.pop(name)
        self.slots.free(slot)
        if self.place_of is None:
            self._free.append(slot)

    def _tell(self, kind: Lifecycle, tenant: Resident, slot: int, generation: int) -> None:
        self.stage.on_event(RequestEvent(kind, tenant.request, slot, generation))

    def _context(self, vllm_config: Any) -> PluginContext:
        return PluginContext(
            caps=self.caps,
            vocab_size=self.vocab_size,
            max_slots=self.max_slots,
            max_length=self.max_length,
            device=self.device,
            rank=self.rank,
            seed=self.resolved.settings.seed,
            tokenizer=_tokenizer(vllm_config),
        )


def _tokenizer(vllm_config: Any) -> Any:
    """Return the target's tokenizer, or None where the server runs without one."""
    if vllm_config.model_config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    return cached_tokenizer_from_config(vllm_config.model_config)
