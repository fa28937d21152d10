"""vLLM's schedulers for drafts of specplug's proposers: the plans, and what proposers learn of requests and engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specplug.types.plan import StepPlan
from specplug.types.request import EngineEventKind
from specplug_vllm import step_metadata
from specplug_vllm.scheduler.endings import Endings
from specplug_vllm.scheduler.grammar import Grammars
from specplug_vllm.scheduler.planned import Planned


class _Proposing(Planned):
    """Mixin that sends the workers step metadata, and completes the drafts of requests with a grammar."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._endings = Endings(self.vllm_config.model_config)
        self._events: list[EngineEventKind] = []
        self._newest = step_metadata.NO_METADATA  # the newest metadata of a step with nothing but a plan
        self._grammars = Grammars(self.vllm_config, self.step_planner)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Let vLLM cut a step's drafts by their grammars, then add the tokens that grammars force."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        self._grammars.complete(self, draft_token_ids)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Notify proposers with the next step: an operator who drops cached prompts may want drafts dropped too."""
        self._events.append("cache flushed")
        return super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Record how a request ended, which vLLM does not send to the workers."""
        self._endings.note(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _attach_metadata(self, scheduler_output: Any, plan: StepPlan) -> None:
        is_plain = not (self._endings.newest or self._events or self._grammars.constrained)
        if is_plain and plan is self._newest.plan and not scheduler_output.scheduled_new_reqs:
            step_metadata.attach(scheduler_output, self._newest)
            return
        salts = {
            new.req_id: request.cache_salt
            for new in scheduler_output.scheduled_new_reqs
            if (request := self.requests[new.req_id]).cache_salt
        }
        endings, events = self._endings.take(), tuple(self._events)
        grammars = self._grammars.take(scheduler_output.num_scheduled_tokens)
        if plan.caps:
            plan = replace(plan, caps=self.step_planner.policy_caps() if self._pads else {})
        if not (endings or salts or events or grammars or plan is not self._newest.plan):
            step_metadata.attach(scheduler_output, self._newest)
            return
        metadata = step_metadata.StepMetadata(plan, endings, salts, events, grammars)
        step_metadata.attach(scheduler_output, metadata)
        self._events.clear()
        if not (endings or salts or events or grammars):
            self._newest = metadata


class SpecplugScheduler(_Proposing, Scheduler):
    """vLLM's scheduler with specplug's plans and drafts."""


class SpecplugAsyncScheduler(_Proposing, AsyncScheduler):
    """vLLM's asynchronous scheduler with specplug's plans and drafts."""
