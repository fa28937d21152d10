"""vLLM's schedulers with specplug's plans: for drafts of specplug's proposers, and for those of vLLM's own drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from specplug.steps.outcome_counts import OutcomeCounts
from specplug.steps.step_planner import DraftResult
from specplug.steps.stops import tokens_before_stop
from specplug.types.request import EngineEventKind
from specplug.types.step import StepPlan
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import engine_method, may_skip_drafts, ranks_step_together, runner_of
from specplug_vllm.scheduler.grammar import Grammars
from specplug_vllm.scheduler.planned import PlanningMixin
from specplug_vllm.step_metadata import Ending

_LEAD = 4  # prompt tokens decoded before the output, as many tokenizers decode the first tokens of a text differently
_NEWEST = 256  # output tokens decoded: the front end aborts a request a few steps after its stop string
_KNOWN = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ABORTED)


class Endings:
    """Collects the endings of requests between two steps for the workers, which get only finished ids from vLLM.

    The front end detects stop strings: it cuts the text and aborts the request.  By then the request may have run
    further steps, or may have ended by itself after the stop string.

    Args:
        model_config: vLLM's.  A server without a tokenizer has no stop strings.

    Attributes:
        newest: the endings since the last call of `take`, by request id.
    """

    def __init__(self, model_config: Any) -> None:
        self._tokenizer = None if model_config.skip_tokenizer_init else cached_tokenizer_from_config(model_config)
        self.newest: dict[str, Ending] = {}

    def note(self, request: Any) -> None:
        """Record how a `Request` ended."""
        self.newest[request.request_id] = self._ending(request)

    def take(self) -> dict[str, Ending]:
        """Return the endings since the last call, by request id."""
        taken = self.newest
        self.newest = {}
        return taken

    def _ending(self, request: Any) -> Ending:
        params = request.sampling_params
        aborted = request.status == RequestStatus.FINISHED_ABORTED
        if params is None or request.status not in _KNOWN:
            return Ending(aborted)
        if not params.stop or self._tokenizer is None:
            return Ending(aborted, request.num_tokens)
        seen = self._before_stop(request, params)
        if seen is not None:
            return Ending(aborted=False, visible=request.num_prompt_tokens + seen)
        # The front end may have aborted the request for a stop string that is not found here.
        return Ending(aborted, None if aborted else request.num_tokens)

    def _before_stop(self, request: Any, params: Any) -> int | None:
        prompt = request.num_prompt_tokens
        return tokens_before_stop(
            request.output_token_ids,
            [params.stop] if isinstance(params.stop, str) else params.stop,
            _decoder(self._tokenizer, params.skip_special_tokens),
            lead=request.all_token_ids[max(0, prompt - _LEAD) : prompt],
            least=params.min_tokens,
            keep=params.include_stop_str_in_output,
            newest=_NEWEST,
        )


def _decoder(tokenizer: Any, skip_special_tokens: bool) -> Callable[[list[int]], str]:
    """Return a function that decodes like vLLM's front end, which does not clean up spaces."""
    options = {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, **options))

    return decode


class _DraftingMixin(PlanningMixin):
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
        reports = self.step_planner.wants_report
        is_plain = not (self._endings.newest or self._events or self._grammars.constrained)
        is_plain = is_plain and reports == self._newest.reports
        if is_plain and plan is self._newest.plan and not scheduler_output.scheduled_new_reqs:
            step_metadata.attach(scheduler_output, self._newest)
            return
        salts = {
            new.req_id: request.cache_salt
            for new in scheduler_output.scheduled_new_reqs
            if (request := self.requests[new.req_id]).cache_salt
        }
        endings = self._endings.take()
        events = tuple(self._events)
        grammars = self._grammars.take(scheduler_output.num_scheduled_tokens)
        if plan.caps:
            plan = replace(plan, caps=self.step_planner.policy_caps() if self._pads else {})
        is_new = plan is not self._newest.plan or reports != self._newest.reports
        if not (endings or salts or events or grammars or is_new):
            step_metadata.attach(scheduler_output, self._newest)
            return
        metadata = step_metadata.StepMetadata(plan, reports, endings, salts, events, grammars)
        step_metadata.attach(scheduler_output, metadata)
        self._events.clear()
        if not (endings or salts or events or grammars):
            self._newest = metadata


class SpecplugScheduler(_DraftingMixin, Scheduler):
    """vLLM's scheduler with specplug's plans and drafts."""


class SpecplugAsyncScheduler(_DraftingMixin, AsyncScheduler):
    """vLLM's asynchronous scheduler with specplug's plans and drafts."""


TAKE_A_LENGTH = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
"""Methods whose drafters take a step's draft length from V1.  The others draft their maximum or fail."""


class _EngineDrafts(PlanningMixin):
    """Mixin that applies the plans to drafts of vLLM's own drafter.

    Rows are cut here, as no worker of specplug's could.  A single shorter row takes a step off its CUDA graph.

    Attributes:
        counts: results of the drafts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.require("engine drafts")
        super().__init__(*args, **kwargs)
        method = engine_method(self.vllm_config)
        assert method is not None
        self.counts = OutcomeCounts(method, self.step_planner.caps.max_draft_length)
        self._asks_ranks = ranks_step_together(self.vllm_config) and may_skip_drafts(self.vllm_config)
        self._takes_length = runner_of(self.vllm_config) == "v2" or method in TAKE_A_LENGTH

    def _count(self, plan: StepPlan, results: list[DraftResult], sent: Sequence[Any]) -> None:
        """Count a step's drafts and tokens."""
        emitted = {each.request_id: len(each.new_token_ids) for each in sent if each.new_token_ids}
        off = sum(map(plan.takes_none, emitted.keys() - {name for name, *_ in results}))
        self.counts.record(results, len(emitted), sum(emitted.values()), off)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Ask the other data-parallel ranks to skip the drafts of a step whose plan has none.

        If one of them drafts, this one does, too, as the drafter's forward passes are of all ranks.  By then vLLM has
        noted that the next step verifies none of these drafts.
        """
        super()._update_after_schedule(scheduler_output)
        if self._asks_ranks and not scheduler_output.num_spec_tokens_to_schedule:
            scheduler_output.num_spec_tokens_to_schedule = self.step_planner.caps.max_draft_length
            scheduler_output.skip_drafts = True

    def _drafted_length(self) -> int:
        """Return the plan's length, or the maximum if the drafter takes no length."""
        return self._row_length if self._takes_length else self.step_planner.caps.max_draft_length

    def _cut_drafts(self, plan: StepPlan) -> None:
        """Cut drafts that are longer than the plan allows their requests, or their placeholders."""
        most = min(self._row_length, plan.draft_length)
        for request in self.running:
            allowed = min(most, plan.caps.get(request.request_id, most)) if plan.caps else most
            if len(request.spec_token_ids) > allowed:
                request.spec_token_ids = request.spec_token_ids[:allowed]


class EngineDraftsScheduler(_EngineDrafts, Scheduler):
    """vLLM's scheduler with specplug's plans for vLLM's own drafter."""


class EngineDraftsAsyncScheduler(_EngineDrafts, AsyncScheduler):
    """vLLM's asynchronous scheduler with specplug's plans for vLLM's own drafter."""
