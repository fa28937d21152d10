"""Plans in vLLM's scheduler, which set the draft length of each step and of each request.

They run in the engine core process.  A plan made while step t is scheduled shapes the drafts made at the end of t,
which step t + 1 verifies.  Under async scheduling vLLM schedules t + 1 before it has the output of t, so the planner's
data is one step older.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any

from specplug.cost.store import UNKNOWN
from specplug.operator.server_planner import ServerPlanner
from specplug.steps.step_planner import UNREPORTED, Bounds, DraftResult, until_stop
from specplug.types.caps import DraftLengthChange
from specplug.types.step import StepCost, StepPlan, StepRecord
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import plugin_context, required
from specplug_vllm.requests import DraftRules
from specplug_vllm.scheduler import timing
from specplug_vllm.startup import recurrent
from specplug_vllm.worker import status
from specplug_vllm.worker.drafting import fields_of


class PlanningMixin:
    """Mixin of every scheduler with specplug's plans; it must stand before vLLM's scheduler among the bases.

    Attributes:
        step_planner: makes the plans and processes the verified steps.
        built_with: the arguments of the constructor.
        start_costs: what steps cost, as far as it is known before the first request.
    """

    vllm_config: Any
    kv_cache_config: Any
    num_spec_tokens: int
    dynamic_sd_lookup: Any
    running: list[Any]
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.require("scheduler")
        super().__init__(*args, **kwargs)
        self.built_with = args, kwargs
        found = required(self.vllm_config)
        longest = int(self.vllm_config.model_config.max_model_len)
        self._rules = DraftRules(self.vllm_config)

        def bounds(request: Any) -> Bounds:
            params = request.sampling_params
            cap = None if params is None else fields_of(params, self._rules)[0].cap
            return Bounds(min(request.num_prompt_tokens + request.max_tokens, longest), cap)

        context = plugin_context(self.vllm_config, found.settings.seed)
        self.step_planner: ServerPlanner[Any] = ServerPlanner(
            found, context, attrgetter("request_id"), attrgetter("num_tokens"), bounds
        )
        self.start_costs = UNKNOWN
        status.install_engine_core()
        timing.install()
        self.dynamic_sd_lookup = None  # no choice by batch size: specplug reads vLLM's list as captured draft lengths
        self._may_narrow = self.step_planner.caps.draft_length_change is not DraftLengthChange.FIXED
        self._pads = self.step_planner.caps.draft_length_change is DraftLengthChange.CAPTURED
        self._sized = self.step_planner.plan  # the plan that `_row_length` is of
        self._row_length = self._length_for(self._sized)
        self._most_placeholders = placeholders_that_fit(
            self.vllm_config.scheduler_config, self.vllm_config.speculative_config.max_num_new_slots_for_drafting
        )
        if recurrent.is_recurrent(self.vllm_config):
            recurrent.refuse_layers(self.kv_cache_config)
        if recurrent.is_recurrent(self.vllm_config) or self._rules.runner == "v1":
            # A recurrent model's new prompt runs as prefill, which cannot roll placeholders back.  V1 rejects them with
            # numbers of the request's own generator, which then gives other text for the same seed.
            self._most_placeholders = 0
        self._began = 0.0
        self._launched: deque[StepRecord] = deque()
        self._results: list[DraftResult] = []

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule as vLLM does, with the plan's row length in place of the server's maximum draft length."""
        self._began = perf_counter()
        self._cut_drafts(self.step_planner.plan)
        if self._rules.runner == "v1":
            for request in self.running:
                self._rules.cut(request)
        widest = self.num_spec_tokens
        self.num_spec_tokens = min(self._row_length, self._most_placeholders)
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.num_spec_tokens = widest

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Process a step's output, which arrives in scheduling order, and report the step to the planner."""
        ended = perf_counter()
        outputs = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output, *args, **kwargs
        )
        report = step_metadata.report_of(model_runner_output)
        if report.profiled:
            self.step_planner.stage.calibrate(report.profiled)
        results = self._settled(outputs)
        if self._launched:
            step = self._launched.popleft()
            step = step if report.verified is None else step.verifying(report.verified)
            # The report is of the drafts that this step verified, so that the host function has ended.
            self.step_planner.finish(step, results, ended, report.drafts)
        return outputs

    def _settled(self, outputs: Any) -> list[DraftResult]:
        """Return the results of a step's drafts up to the ends of their requests, once vLLM's `outputs` are known."""
        results = self._results
        sent = [each for of_client in outputs.values() for each in of_client.outputs]
        if results:
            self._results = []
            ended = {each.request_id: len(each.new_token_ids) for each in sent if each.finish_reason is not None}
            results = [until_stop(result, ended.get(result[0], result[2] + 1)) for result in results]
        self._count(self._launched[0].plan if self._launched else self.step_planner.plan, results, sent)
        return results

    def _count(self, plan: StepPlan, results: list[DraftResult], sent: Sequence[Any]) -> None:
        """Count a step with the drafts of a plan, of which clients receive what was `sent`.

        By default nothing is counted, as workers count.
        """

    def _handle_stopped_request(self, request: Any) -> bool:
        """Keep a session whose turn ends inside a draft at the end of its turn, not at that of the draft.

        vLLM continues a session from its count of computed tokens, which without async scheduling still holds the
        accepted tokens after the end: it would skip as many tokens of the next turn's input.
        """
        if request.resumable:
            kept = request.num_tokens - 1 + request.num_output_placeholders  # vLLM computes the last one again
            request.num_computed_tokens = min(request.num_computed_tokens, kept)
        return bool(super()._handle_stopped_request(request))  # type: ignore[misc]

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Record how many draft tokens of one request were accepted."""
        self._results.append((kwargs["request_id"], kwargs["num_draft_tokens"], kwargs["num_accepted_tokens"]))
        return super().make_spec_decoding_stats(*args, **kwargs)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Make the plan before vLLM decides how many draft tokens to expect from the step."""
        planner = self.step_planner
        scheduled = scheduler_output.num_scheduled_tokens
        planner.forget(scheduler_output.finished_req_ids)
        if planner.reads_costs:
            # vLLM also runs steps without any request, whose drafts are no evidence.
            is_reported = scheduled and not planner.is_off
            self._launched.append(self._launch(scheduler_output) if is_reported else UNREPORTED)
        plan = planner.make(self.running)
        if plan is not self._sized or plan.caps:
            self._sized, self._row_length = plan, self._length_for(plan)
        scheduler_output.num_spec_tokens_to_schedule = self._drafted_length()
        self._attach_metadata(scheduler_output, plan)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def _drafted_length(self) -> int:
        """Return how many draft tokens per row the step makes."""
        return self._row_length

    def _attach_metadata(self, scheduler_output: Any, plan: StepPlan) -> None:
        """Attach to the step what the workers need with it; by default nothing."""

    def _launch(self, scheduler_output: Any) -> StepRecord:
        """Record the beginning of a step."""
        scheduled = scheduler_output.num_scheduled_tokens
        tokens = sum(scheduled.values())
        context = sum(scheduler_output.scheduled_cached_reqs.num_computed_tokens)
        drafts = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
        prompts = tokens - len(scheduled) - drafts
        cost = StepCost(len(scheduled), tokens, context, self._row_length, 0.0, prompts)
        return self.step_planner.launch(self._began, cost)

    def _length_for(self, plan: StepPlan) -> int:
        """Return the draft length of the rows of the next step, before caps.

        Where CUDA graphs are captured per draft length, all rows get the shortest captured length that fits them.
        """
        caps = self.step_planner.caps
        if not self._may_narrow:
            return caps.max_draft_length if plan.draft_length or 0 not in caps.captured_draft_lengths else 0
        if not self._pads:
            return plan.draft_length
        longest = max(
            (plan.draft_length_for(request.request_id) for request in self.running), default=plan.draft_length
        )
        return min(
            (length for length in caps.captured_draft_lengths if length >= longest), default=caps.max_draft_length
        )

    def _cut_drafts(self, plan: StepPlan) -> None:
        """Cut the drafts, or their placeholders, of requests that the newest plan caps.

        A single shorter row would take the step off its CUDA graph, so where there are graphs rows are padded instead:
        the worker applies the caps, and accepted padding does not count as a draft.
        """
        if self._pads or (self._may_narrow and not plan.caps):
            return
        names = plan.caps if self._may_narrow else [request.request_id for request in self.running]
        for name in names:
            request = self.requests.get(name)
            if request is not None and request.spec_token_ids:
                request.spec_token_ids = request.spec_token_ids[: plan.draft_length_for(name)]


def placeholders_that_fit(scheduler_config: Any, reserved: int) -> int:
    """Return how many draft tokens at most vLLM may expect of a request that joins with one token to compute.

    vLLM fails if they exceed a prompt's chunk, and does not start a request while they exceed a step's token budget.

    Args:
        scheduler_config: vLLM's `SchedulerConfig`.
        reserved: the tokens of a step's budget that each row leaves to the engine's own drafter.
    """
    chunk = scheduler_config.long_prefill_token_threshold
    batched = scheduler_config.max_num_batched_tokens
    budget = min(scheduler_config.max_num_scheduled_tokens or batched, batched - reserved)
    return int(min(chunk, budget) if chunk > 0 else budget) - 1
