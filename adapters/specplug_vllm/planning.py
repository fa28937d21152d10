"""The scheduler process's half of specplug: makes the plan of every step, from the scheduler's own figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from specplug.assembly import build_plan_stage
from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.pipeline.stages import PlanStage
from specplug.registry import default_registry
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.plan import HostStats, RequestStats, StepPlan
from specplug_vllm import status, wire
from specplug_vllm.asked import engine_caps, resolved
from specplug_vllm.control import Control


class _Tally:
    """One request's own limit and what became of its drafts."""

    __slots__ = ("accepted", "cap", "end", "verified")

    def __init__(self, request: Any, max_length: int) -> None:
        params = request.sampling_params
        self.cap = None if params is None else wire.decode(params.extra_args)[0].cap
        self.end = min(request.num_prompt_tokens + request.max_tokens, max_length)
        self.verified = self.accepted = 0


class Planning:
    """Plans steps.

    Args:
        vllm_config: of a server that asked for specplug.

    Attributes:
        stage: the policy's plan half, contained.
        control: what the operator says.
        faults: per plug-in and kind, as `SpecMetrics` counts them.
        plan: the newest plan; it shapes the drafts that the step after it verifies.
    """

    def __init__(self, vllm_config: Any) -> None:
        found = resolved(vllm_config)
        if found is None:
            raise EngineError.build("this server did not ask for specplug", who="specplug_vllm")
        self.resolved = found
        self.caps: EngineCaps = engine_caps(vllm_config)
        self.faults: Counter[tuple[str, str]] = Counter()
        self.max_length: int = vllm_config.model_config.max_model_len
        context = PluginContext(
            caps=self.caps,
            vocab_size=vllm_config.model_config.get_vocab_size(),
            max_slots=vllm_config.scheduler_config.max_num_seqs,
            max_length=self.max_length,
            seed=found.settings.seed,
        )
        self.stage: PlanStage = build_plan_stage(found.settings, default_registry(), context, self._count)
        self.control = Control(found.settings)
        self.plan = StepPlan(width=0)
        self.steps = 0
        self._tallies: dict[str, _Tally] = {}
        self._capped: dict[str, int] = {}
        status.install_engine_core()

    def make(self, running: Iterable[Any], num_waiting: int, prefill_tokens: int) -> StepPlan:
        """Plan what the next step's drafts may be; `running` are vLLM's own requests."""
        self.stage.ceiling = self.control.ceiling()
        figures = tuple([self._figures(request) for request in running])
        stats = HostStats(self.steps, figures, num_waiting=num_waiting, prefill_tokens=prefill_tokens)
        self.plan = self._enforced(self.stage.plan(stats), len(figures))
        self.steps += 1
        return self.plan

    def observe(self, request_id: str, verified: int, accepted: int) -> None:
        """Count what a step verified and accepted of one request's drafts, filler included."""
        tally = self._tallies.get(request_id)
        if tally is not None:
            tally.verified += verified
            tally.accepted += accepted

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is known of finished requests."""
        for request_id in request_ids:
            self._tallies.pop(request_id, None)
            self._capped.pop(request_id, None)

    def _figures(self, request: Any) -> RequestStats:
        name = request.request_id
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = _Tally(request, self.max_length)
            if tally.cap is not None:
                self._capped[name] = tally.cap
        length = request.num_tokens
        return RequestStats(name, length, tally.end - length, tally.cap, tally.verified, tally.accepted)

    def _enforced(self, plan: StepPlan, num_requests: int) -> StepPlan:
        """Hold requests' own limits, and the budget: no row can use more, and padded rows are all as wide."""
        if self._capped:
            own = {name: min(plan.width_for(name), cap) for name, cap in self._capped.items()}
            plan = replace(plan, caps={**plan.caps, **own})
        if plan.token_budget is None or not num_requests:
            return plan
        rows = 1 if self.caps.ragged is Ragged.NATIVE else num_requests
        return replace(plan, width=self.caps.fit_width(min(plan.width, plan.token_budget // rows)))

    def _count(self, name: str, kind: str) -> None:
        self.faults[name, kind] += 1
