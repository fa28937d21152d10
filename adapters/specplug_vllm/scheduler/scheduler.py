"""vLLM's schedulers with specplug's plans, for the drafts of specplug's proposers and those of vLLM's own drafters.

They run in the engine core process.  A plan made while step t is scheduled shapes the drafts made at the end of t,
which step t + 1 verifies.  Under async scheduling vLLM schedules t + 1 before it has the output of t, so the planner's
data is one step older.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from time import perf_counter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specplug.cost.store import UNKNOWN
from specplug.operator import startup
from specplug.operator.server_planner import ServerPlanner
from specplug.steps.outcome_counts import OutcomeCounts
from specplug.steps.step_planner import UNREPORTED, Bounds, DraftResult
from specplug.types.request import EngineEventKind
from specplug.types.step import StepCost, StepPlan, StepRecord, until_stop
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import (
    drafter_of,
    has_lockstep_ranks,
    may_skip_drafts,
    plugin_context,
    require_settings,
    use_of,
)
from specplug_vllm.requests import DraftRules, fields_of
from specplug_vllm.scheduler import timing
from specplug_vllm.scheduler.endings import Endings
from specplug_vllm.scheduler.grammar import Grammars
from specplug_vllm.scheduler.row_lengths import RowLengths
from specplug_vllm.startup import recurrent
from specplug_vllm.step_metadata import StepMetadata
from specplug_vllm.worker import status


class PlanningMixin:
    """Mixin of the schedulers with specplug's plans; it must stand before vLLM's scheduler among the bases.

    Attributes:
        step_planner: makes the plans and processes the verified steps.
        built_with: the arguments of the constructor.
        start_costs: what steps cost, as far as it is known before the first request.
        counts: results of the drafts of vLLM's own drafter; None if specplug's proposers draft, which workers count.
    """

    vllm_config: Any
    kv_cache_config: Any
    num_spec_tokens: int
    dynamic_sd_lookup: Any
    running: list[Any]
    requests: dict[str, Any]

    @startup.told_by_parent()
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.require("scheduler")
        super().__init__(*args, **kwargs)
        self.built_with = args, kwargs
        config = self.vllm_config
        resolved = require_settings(config)
        longest = int(config.model_config.max_model_len)
        rules = DraftRules(config)

        def bounds(request: Any) -> Bounds:
            params = request.sampling_params
            cap = None if params is None else fields_of(params, rules)[0].cap
            return Bounds(min(request.num_prompt_tokens + request.max_tokens, longest), cap)

        context = plugin_context(config, resolved.settings.seed)
        self.step_planner: ServerPlanner[Any] = ServerPlanner(
            resolved, context, attrgetter("request_id"), attrgetter("num_tokens"), bounds
        )
        self.start_costs = UNKNOWN
        status.install_engine_core()
        timing.install()
        if recurrent.is_recurrent(config):
            recurrent.refuse_layers(self.kv_cache_config)
        self.dynamic_sd_lookup = None  # no choice by batch size: specplug reads vLLM's list as captured draft lengths
        self._lengths = RowLengths(config, self.step_planner.caps, rules)
        self._lengths.follow(self.step_planner.plan, self.running)
        self._began = 0.0
        self._launched: deque[StepRecord] = deque()
        self._results: list[DraftResult] = []
        is_engines = use_of(config) == "engine"
        if is_engines:
            seams.require("engine drafts")
        longest_draft = self.step_planner.caps.max_draft_length
        self.counts = OutcomeCounts(drafter_of(config), longest_draft) if is_engines else None
        self._asks_ranks = is_engines and has_lockstep_ranks(config) and may_skip_drafts(config)
        self._endings = Endings(config.model_config)
        self._events: list[EngineEventKind] = []
        completes = not is_engines and rules.runner == "v1"
        self._grammars = Grammars(config, self.step_planner) if completes else None
        self._plain = StepMetadata()  # the newest metadata of a step with nothing but a plan

    # -- a step, in the order of its calls ------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule as vLLM does, with the plan's row length in place of the server's maximum draft length."""
        self._began = perf_counter()
        self._lengths.cut(self.step_planner.plan, self.running)
        max_length = self.num_spec_tokens
        self.num_spec_tokens = self._lengths.placeholders
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.num_spec_tokens = max_length

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Make the plan before vLLM decides how many draft tokens to expect from the step."""
        planner = self.step_planner
        planner.forget(scheduler_output.finished_req_ids)
        if planner.reads_costs:
            # vLLM also runs steps without any request, whose drafts are no evidence.
            is_reported = scheduler_output.num_scheduled_tokens and not planner.is_off
            self._launched.append(self._launch(scheduler_output) if is_reported else UNREPORTED)
        plan = planner.make(self.running)
        self._lengths.follow(plan, self.running)
        scheduler_output.num_spec_tokens_to_schedule = self._lengths.drafted
        if self.counts is None:
            step_metadata.attach(scheduler_output, self._metadata(scheduler_output, plan))
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        if self._asks_ranks and not scheduler_output.num_spec_tokens_to_schedule:
            # The other data-parallel ranks are asked to skip the drafts as well.  If one of them drafts, this one does,
            # too, as the drafter's forward passes are of all ranks.  vLLM has noted that no draft is verified.
            scheduler_output.num_spec_tokens_to_schedule = planner.caps.max_draft_length
            scheduler_output.skip_drafts = True

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Record how many draft tokens of one request were verified, without those a grammar forbids, and accepted."""
        name = kwargs["request_id"]
        verified = kwargs["num_draft_tokens"] - (kwargs["num_invalid_spec_tokens"] or {}).get(name, 0)
        self._results.append((name, verified, kwargs["num_accepted_tokens"]))
        return super().make_spec_decoding_stats(*args, **kwargs)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Process a step's output, which arrives in scheduling order, and report the step to the planner."""
        ended = perf_counter()
        outputs = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output, *args, **kwargs
        )
        report = step_metadata.report_of(model_runner_output)
        if report.profiled:
            self.step_planner.stage.calibrate(report.profiled)
        sent = [each for of_client in outputs.values() for each in of_client.outputs]
        results = self._results
        self._results = []
        if results:
            received = {each.request_id: len(each.new_token_ids) for each in sent if each.finish_reason is not None}
            results = [
                (name, *until_stop(verified, accepted, received.get(name, accepted + 1)))
                for name, verified, accepted in results
            ]
        if self.counts is not None:
            self._count(self._launched[0].plan if self._launched else self.step_planner.plan, results, sent)
        if self._launched:
            step = self._launched.popleft()
            step = step if report.verified is None else step.verifying(report.verified)
            # The report is of the drafts that this step verified, so that the device has written it.
            self.step_planner.finish(step, results, ended, report.drafts)
        return outputs

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Let vLLM cut a step's drafts by their grammars, then add the tokens that grammars force."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        if self._grammars is not None:
            self._grammars.complete(self, draft_token_ids)

    # -- its parts ------------------------------------------------------------------------------------------------

    def _launch(self, scheduler_output: Any) -> StepRecord:
        """Record the beginning of a step."""
        scheduled = scheduler_output.num_scheduled_tokens
        tokens = sum(scheduled.values())
        context = sum(scheduler_output.scheduled_cached_reqs.num_computed_tokens)
        drafts = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
        prompts = tokens - len(scheduled) - drafts
        cost = StepCost(len(scheduled), tokens, context, self._lengths.length, 0.0, prompts)
        return self.step_planner.launch(self._began, cost)

    def _metadata(self, scheduler_output: Any, plan: StepPlan) -> StepMetadata:
        """Return what the workers need with a step."""
        new = scheduler_output.scheduled_new_reqs
        reports = self.step_planner.wants_report
        grammars = {} if self._grammars is None else self._grammars.take(scheduler_output.num_scheduled_tokens)
        is_plain = not (new or grammars or self._endings.newest or self._events)
        if is_plain and plan is self._plain.plan and reports == self._plain.reports:
            return self._plain
        if plan.caps:
            plan = replace(plan, caps=self.step_planner.policy_caps() if self._lengths.pads else {})
        salts = {each.req_id: salt for each in new if (salt := self.requests[each.req_id].cache_salt)}
        endings = self._endings.take()
        metadata = StepMetadata(plan, reports, endings, salts, tuple(self._events), grammars)
        self._events.clear()
        if is_plain:
            self._plain = metadata
        return metadata

    def _count(self, plan: StepPlan, results: list[DraftResult], sent: Sequence[Any]) -> None:
        """Count a step with the drafts of a plan of vLLM's own drafter, of which clients receive what was `sent`."""
        assert self.counts is not None
        emitted = {each.request_id: len(each.new_token_ids) for each in sent if each.new_token_ids}
        off = sum(map(plan.takes_none, emitted.keys() - {name for name, *_ in results}))
        self.counts.record(results, len(emitted), sum(emitted.values()), off)

    # -- requests -------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Notify proposers with the next step: an operator who drops cached prompts may want drafts dropped too."""
        if self.counts is None:
            self._events.append("cache flushed")
        return super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Record how a request ended, which vLLM does not send to the workers."""
        if self.counts is None:
            self._endings.record(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _handle_stopped_request(self, request: Any) -> bool:
        """Keep a session whose turn ends inside a draft at the end of its turn, not at that of the draft.

        The next turn has parameters of its own, so that what the planner knows of this one is dropped.
        vLLM continues a session from its count of computed tokens, which without async scheduling still holds the
        accepted tokens after the end: it would skip as many tokens of the next turn's input.
        """
        if request.resumable:
            kept = request.num_tokens - 1 + request.num_output_placeholders  # vLLM computes the last one again
            request.num_computed_tokens = min(request.num_computed_tokens, kept)
        is_finished = bool(super()._handle_stopped_request(request))  # type: ignore[misc]
        if not is_finished:
            self.step_planner.forget([request.request_id])
        return is_finished


class SpecplugScheduler(PlanningMixin, Scheduler):
    """vLLM's scheduler with specplug's plans."""


class SpecplugAsyncScheduler(PlanningMixin, AsyncScheduler):
    """vLLM's asynchronous scheduler with specplug's plans."""
