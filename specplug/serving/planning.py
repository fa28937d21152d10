"""Plans of steps, made where an engine schedules, from the engine's own figures of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from specplug.assembly import build_plan_stage
from specplug.interfaces import PluginContext
from specplug.pipeline.stages import PlanStage
from specplug.registry import default_registry
from specplug.serving.control import Control
from specplug.settings.sources import ResolvedSettings
from specplug.types.caps import Ragged
from specplug.types.plan import HostStats, RequestStats, StepPlan

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request itself allows.

    Attributes:
        end: most tokens that prompt and output may have together.
        cap: most draft tokens per step, None for no limit.
    """

    end: int
    cap: int | None


class _Tally:
    """One request's bounds and what became of its drafts."""

    __slots__ = ("accepted", "bounds", "verified")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.verified = self.accepted = 0


class Planning(Generic[R]):
    """Plans steps of an engine whose requests are of type `R`.

    Args:
        found: the server's settings.
        context: what the policy is built with.
        measure: returns a request's id and its number of tokens.
        bounds: returns what a request allows; asked once per request.

    Attributes:
        stage: the policy's plan half, contained.
        control: what the operator says.
        faults: per plug-in and kind, as `SpecMetrics` counts them.
        plan: the newest plan.
        steps: how many were planned.
    """

    def __init__(
        self,
        found: ResolvedSettings,
        context: PluginContext,
        measure: Callable[[R], tuple[str, int]],
        bounds: Callable[[R], Bounds],
    ) -> None:
        self.resolved, self.caps = found, context.caps
        self.faults: Counter[tuple[str, str]] = Counter()
        self.stage: PlanStage = build_plan_stage(found.settings, default_registry(), context, self._count)
        self.control = Control(found.settings)
        self.plan = StepPlan(width=0)
        self.steps = 0
        self._measure, self._bounds = measure, bounds
        self._tallies: dict[str, _Tally] = {}
        self._capped: dict[str, int] = {}

    def make(self, running: Iterable[R], num_waiting: int, prefill_tokens: int) -> StepPlan:
        """Plan what the next step's drafts may be; `running` are the engine's own requests."""
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

    def policy_caps(self) -> dict[str, int]:
        """Return the newest plan's caps that are tighter than its width and than what requests set themselves."""
        widest = self.plan.width
        return {name: cap for name, cap in self.plan.caps.items() if cap < min(widest, self._capped.get(name, widest))}

    def _figures(self, request: R) -> RequestStats:
        name, length = self._measure(request)
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = _Tally(self._bounds(request))
            if tally.bounds.cap is not None:
                self._capped[name] = tally.bounds.cap
        end, cap = tally.bounds.end, tally.bounds.cap
        return RequestStats(name, length, end - length, cap, tally.verified, tally.accepted)

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
