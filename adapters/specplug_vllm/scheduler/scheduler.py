"""vLLM's scheduler with specplug's plans: how wide each step's drafts are, and each request's.

A plan made while step t is scheduled shapes the drafts made at its end, which step t + 1 verifies.  Under async
scheduling vLLM schedules t + 1 before it has seen the output of t, so its figures are one step older still.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.requests import wire
from specplug.runtime.step_planner import Bounds, Fate, Launched, StepPlanner
from specplug.types.caps import DraftLengthChange
from specplug.types.plan import StepPlan
from specplug.types.request import EngineEventKind
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import engine_caps, resolved, target_model
from specplug_vllm.scheduler.endings import Endings
from specplug_vllm.scheduler.grammar import Grammars
from specplug_vllm.startup import recurrent
from specplug_vllm.worker import status


class _Planned:
    """What both schedulers do; the leftmost base.

    Attributes:
        step_planner: the scheduler process's half of specplug.
    """

    vllm_config: Any
    kv_cache_config: Any
    num_spec_tokens: int
    dynamic_sd_lookup: Any
    running: list[Any]
    waiting: Any
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.require("scheduler")
        super().__init__(*args, **kwargs)
        self.step_planner = planning_of(self.vllm_config)
        status.install_engine_core()
        self.dynamic_sd_lookup = None  # vLLM's choice by batch size; its list says here what is captured
        self._may_narrow = self.step_planner.caps.draft_length_change is not DraftLengthChange.FIXED
        self._pads = self.step_planner.caps.draft_length_change is DraftLengthChange.CAPTURED
        self._row_length = self._length_for(self.step_planner.plan)
        # vLLM pads some new requests with as many placeholders, and fails when they exceed what a prompt may advance.
        chunk = self.vllm_config.scheduler_config.long_prefill_token_threshold
        self._most_placeholders = chunk - 1 if chunk > 0 else self.step_planner.caps.max_draft_length
        if recurrent.is_recurrent(self.vllm_config):
            recurrent.refuse_layers(self.kv_cache_config)
            self._most_placeholders = 0  # a fresh prompt runs as prefill, which cannot roll them back
        self._endings = Endings(self.vllm_config.model_config)
        self._events: list[EngineEventKind] = []
        self._began = 0.0
        self._launched: deque[Launched] = deque()
        self._fates: list[Fate] = []
        self._grammars = Grammars(self.vllm_config, self.step_planner)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule as vLLM does, as if the server's widest draft were what the plan allows."""
        self._began = perf_counter()
        self._cut_drafts()
        widest, self.num_spec_tokens = self.num_spec_tokens, min(self._row_length, self._most_placeholders)
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.num_spec_tokens = widest

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Take in a step's output, which comes in the order in which steps were scheduled, and report the step."""
        ended = perf_counter()
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        if self._launched:
            self.step_planner.finish(self._launched.popleft(), self._fates, ended)
        self._fates = []
        return outputs

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take in the drafts of a step, which vLLM cuts by grammars, and add what grammars force."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self._grammars.complete(self, draft_token_ids)

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Take note of one request's verdict."""
        self._fates.append((kwargs["request_id"], kwargs["num_draft_tokens"], kwargs["num_accepted_tokens"]))
        return super().make_spec_decoding_stats(*args, **kwargs)  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Tell proposers with the next step: whoever wants cached prompts forgotten may want drafts forgotten too."""
        self._events.append("cache flushed")
        return super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Take note of how a request has ended, which the workers are not told otherwise."""
        self._endings.note(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Plan, before vLLM decides how many draft tokens to expect of the step."""
        self.step_planner.forget(scheduler_output.finished_req_ids)
        scheduled = scheduler_output.num_scheduled_tokens
        tokens, length = sum(scheduled.values()), self._row_length
        self._launched.append(self.step_planner.launch(self._began, len(scheduled), tokens, length))
        prompts = sum(scheduler_output.num_scheduled_tokens[new.req_id] for new in scheduler_output.scheduled_new_reqs)
        plan = self.step_planner.make(self.running, len(self.waiting), prompts)
        self._row_length = scheduler_output.num_spec_tokens_to_schedule = self._length_for(plan)
        self._attach_metadata(scheduler_output, plan)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def _length_for(self, plan: StepPlan) -> int:
        """Return how many draft tokens the rows of the next step have, but for caps.

        Where steps have CUDA graphs by length, all rows get the shortest captured length that holds their drafts.
        """
        caps = self.step_planner.caps
        if not self._may_narrow:
            return caps.max_draft_length
        if not self._pads:
            return plan.draft_length
        longest = max(
            (plan.draft_length_for(request.request_id) for request in self.running), default=plan.draft_length
        )
        return min(
            (length for length in caps.captured_draft_lengths if length >= longest), default=caps.max_draft_length
        )

    def _cut_drafts(self) -> None:
        """Cut the drafts, or their placeholders, of requests that the newest plan caps.

        One shorter row costs a step its CUDA graph, so that rows are padded instead where there are graphs: what caps
        allow is then up to the worker, and padding that is accepted does not count as a draft.
        """
        plan = self.step_planner.plan
        if self._pads:
            return
        names = plan.caps if self._may_narrow else [request.request_id for request in self.running]
        for name in names:
            request = self.requests.get(name)
            if request is not None and request.spec_token_ids:
                request.spec_token_ids = request.spec_token_ids[: plan.draft_length_for(name)]

    def _attach_metadata(self, scheduler_output: Any, plan: StepPlan) -> None:
        salts = {
            new.req_id: request.cache_salt
            for new in scheduler_output.scheduled_new_reqs
            if (request := self.requests[new.req_id]).cache_salt
        }
        endings = self._endings.take()
        grammars = self._grammars.take(scheduler_output.num_scheduled_tokens)
        plan = replace(plan, caps=self.step_planner.policy_caps() if self._pads else {})
        step_metadata.attach(
            scheduler_output, step_metadata.StepMetadata(plan, endings, salts, tuple(self._events), grammars)
        )
        self._events = []


class SpecplugScheduler(_Planned, Scheduler):
    """vLLM's scheduler, planned by specplug."""


class SpecplugAsyncScheduler(_Planned, AsyncScheduler):
    """vLLM's asynchronous scheduler, planned by specplug."""


def planning_of(vllm_config: Any) -> StepPlanner[Any]:
    """Build the scheduler process's half of specplug, for a server that asked for it."""
    found = resolved(vllm_config)
    if found is None:
        raise EngineError.build("this server did not ask for specplug", who="specplug_vllm")
    longest: int = vllm_config.model_config.max_model_len
    context = PluginContext(
        caps=engine_caps(vllm_config),
        vocab_size=vllm_config.model_config.get_vocab_size(),
        max_slots=vllm_config.scheduler_config.max_num_seqs,
        max_length=longest,
        seed=found.settings.seed,
        target=target_model(vllm_config),
    )

    def bounds(request: Any) -> Bounds:
        params = request.sampling_params
        cap = None if params is None else wire.decode(params.extra_args)[0].cap
        return Bounds(min(request.num_prompt_tokens + request.max_tokens, longest), cap)

    return StepPlanner(found, context, lambda request: (request.request_id, request.num_tokens), bounds)
