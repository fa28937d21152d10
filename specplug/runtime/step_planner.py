"""Plans of steps, made where an engine schedules, from the engine's own figures of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from specplug.assembly import build_plan_stage
from specplug.interfaces import PluginContext
from specplug.operator.control import Control
from specplug.pipeline.stages import PlanStage
from specplug.plugins.registry import default_registry
from specplug.settings.sources import ResolvedSettings
from specplug.types.caps import Ragged
from specplug.types.plan import NO_SPECULATION, HostStats, RequestStats, StepCost, StepPlan, StepReport

R = TypeVar("R")

Fate = tuple[str, int, int]
"""A request's id, and how many draft tokens of it a step verified and accepted."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request itself allows.

    Attributes:
        end: most tokens that prompt and output may have together.
        cap: most draft tokens per step, None for no limit.
    """

    end: int
    cap: int | None


class Launched(NamedTuple):
    """A step that the engine has begun, and whose results are still to come.

    Attributes:
        plan: what shaped its drafts, with the number and the number of requests that it was made for.
        began: when, in seconds.
        cost: what it costs; its seconds are still 0.  None where the time is not going to be known.
    """

    plan: tuple[int, int, StepPlan]
    began: float
    cost: StepCost | None


class _Tally:
    """One request's bounds and what became of its drafts."""

    __slots__ = ("accepted", "bounds", "verified")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.verified = self.accepted = 0


class StepPlanner(Generic[R]):
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
        last_step: cost of the newest step whose time is known; None at first.
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
        self.plan = NO_SPECULATION
        self.steps = 0
        self.last_step: StepCost | None = None
        self._planned = (0, 0)  # requests and their tokens
        self._ended = 0.0
        self._measure, self._bounds = measure, bounds
        self._tallies: dict[str, _Tally] = {}
        self._capped: dict[str, int] = {}

    def make(self, running: Iterable[R], num_waiting: int, prefill_tokens: int) -> StepPlan:
        """Plan what the next step's drafts may be; `running` are the engine's own requests."""
        self.stage.ceiling = self.control.ceiling()
        figures = tuple([self._figures(request) for request in running])
        stats = HostStats(self.steps, figures, num_waiting, prefill_tokens, self.last_step)
        self.plan = self._enforced(self.stage.plan(stats), len(figures))
        self._planned = (len(figures), sum([figure.length for figure in figures]))
        self.steps += 1
        return self.plan

    def launch(self, began: float, requests: int, tokens: int, draft_length: int, *, timed: bool = True) -> Launched:
        """Note that the engine runs a step with the drafts of the newest plan; hand the result to `finish`.

        Args:
            began: when it was begun, by `time.perf_counter`.
            requests, tokens, draft_length: see `StepCost`.
            timed: whether nothing else is going to be measured with it.
        """
        planned, context = self._planned
        cost = StepCost(requests, tokens, context, draft_length, seconds=0.0) if timed and tokens else None
        return Launched((self.steps - 1, planned, self.plan), began, cost)

    def finish(self, step: Launched, fates: Sequence[Fate], ended: float) -> None:
        """Count what became of a step's drafts, whose results came at `ended`; steps finish in their order.

        Where the host runs ahead, a step waits for the one before it, so its time is counted from when that one ended.
        """
        for request_id, verified, accepted in fates:
            tally = self._tallies.get(request_id)
            if tally is not None:
                tally.verified += verified
                tally.accepted += accepted
        cost = None
        if step.cost is not None:
            cost = self.last_step = replace(step.cost, seconds=ended - max(step.began, self._ended))
        self._ended = ended
        number, requests, plan = step.plan
        if self.stage.learns and number >= 0:
            counts = [(verified, accepted) for _, verified, accepted in fates]
            self.stage.observe(StepReport.build(number, plan.draft_length, requests, counts, cost))

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is known of finished requests."""
        for request_id in request_ids:
            self._tallies.pop(request_id, None)
            self._capped.pop(request_id, None)

    def policy_caps(self) -> dict[str, int]:
        """Return the newest plan's caps that are tighter than its width and than what requests set themselves."""
        widest = self.plan.draft_length
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
            own = {name: min(plan.draft_length_for(name), cap) for name, cap in self._capped.items()}
            plan = replace(plan, caps={**plan.caps, **own})
        if plan.token_budget is None or not num_requests:
            return plan
        rows = 1 if self.caps.ragged is Ragged.NATIVE else num_requests
        return replace(plan, draft_length=self.caps.fit_draft_length(min(plan.draft_length, plan.token_budget // rows)))

    def _count(self, name: str, kind: str) -> None:
        self.faults[name, kind] += 1
