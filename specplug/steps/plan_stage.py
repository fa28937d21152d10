"""The plan stage: runs the plan half of a policy on the host, in the scheduler's process or inline.

Several policies are planned as one: under the plan that they join, the limits of all their plans hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from operator import index, is_not
from typing import Any

import numpy as np

from specplug.errors import ContractError
from specplug.faults import FaultGuard, status_of
from specplug.interfaces import Planner
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import MAX_COST_POINTS, MAX_DRAFT_TOKENS, CostPoint, StepCost, StepPlan

OFF = StepPlan(draft_length=0, why="switched off")
"""The plan of every step while the operator allows no drafts."""

_FAILED = StepPlan(draft_length=0, why="policy failed")


class PlanStage:
    """The host half.  If a planner raises, the step does not speculate, which is never slower than the engine alone."""

    def __init__(self, planner: Planner, caps: EngineCaps, guard: FaultGuard) -> None:
        self._planner = planner
        self._caps = caps
        self._guard = guard
        self.learns = planner.learns
        self.is_constant = planner.is_constant
        self.reads_costs = self.learns or not self.is_constant
        """True if the planner may read what steps cost."""
        self.reads_requests = self.reads_costs and planner.reads_requests
        """True if the planner may read counts or runs of single requests, see `Planner`; as of its newest plan."""
        self._newest: tuple[StepPlan, int | None, StepPlan] | None = None  # a plan, the ceiling, and the fitted plan
        self.ceiling: int | None = None
        """The operator's limit on the draft length, changeable while serving; 0 stops drafting, None is no limit."""

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the plan of a step, with a draft length that the engine can run."""
        plans = [OFF if self.is_off else _FAILED]
        if not self.is_off and self._guard.admits_step():
            self._guard.step(lambda: plans.append(self._fitted(self._planner.plan(stats))))
        return plans[-1]

    def longest_draft(self, batch_size: int) -> int:
        """Return the most draft tokens per row that plans for B requests have, as far as the planner knows."""
        lengths = [self._caps.max_draft_length]

        def ask() -> None:
            if (longest := self._planner.longest_draft(batch_size)) is not None:
                lengths.append(index(longest))

        self._guard.call(ask)
        return min(lengths)

    @property
    def is_off(self) -> bool:
        """True if the operator allows no drafts.  The planner is then neither called nor sent reports."""
        return self.ceiling == 0

    @property
    def constant_plan(self) -> StepPlan | None:
        """The plan of every step under the present ceiling, as `plan` returns it; None if `plan` must be called."""
        if self.is_off:
            return OFF
        known = self._newest
        return known[2] if self.is_constant and known is not None and known[1] == self.ceiling else None

    def status(self) -> dict[str, Any]:
        """Return what the planner reports of itself, {"error": ...} if that fails; empty if it reports nothing."""
        return status_of(self._guard.name, self._planner)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Pass costs that the engine profiled at start-up to the planner, also if the operator allows no drafts."""
        self._guard.call(lambda: self._planner.calibrate(costs))

    def observe(self, report: StepReport) -> None:
        """Pass a step's report to the planner if it learns."""
        if self.learns and not self._guard.is_off:
            self._guard.call(lambda: self._planner.observe(report))

    def _fitted(self, plan: StepPlan) -> StepPlan:
        """Check a plan and fit it to the engine.  Planners often return the plan of the step before."""
        self.reads_requests = self.reads_costs and self._planner.reads_requests
        known = self._newest
        if known is not None and known[0] is plan and known[1] == self.ceiling:
            return known[2]
        length = index(plan.draft_length)  # raises on a fraction here, where the error is contained
        fitted = replace(
            plan,
            draft_length=self._caps.fit_draft_length(length if self.ceiling is None else min(length, self.ceiling)),
            token_budget=None if plan.token_budget is None else index(plan.token_budget),
            costs=checked_costs(plan.costs),
            num_steps=index(plan.num_steps),
        )
        self._newest = plan, self.ceiling, fitted
        return fitted


def checked_costs(costs: Sequence[CostPoint]) -> tuple[CostPoint, ...]:
    """Return the points of a cost curve; refuse those that are no numbers, too many, too far or not ascending."""
    points = tuple([CostPoint(index(tokens), float(cost)) for tokens, cost in costs])
    tokens = [-1, *[point.draft_tokens for point in points], MAX_DRAFT_TOKENS + 1]
    if (
        tokens != sorted(set(tokens))
        or len(points) > MAX_COST_POINTS
        or not all(isfinite(point.cost) for point in points)
    ):
        raise ContractError.build(
            "the costs of a plan are no curve",
            found=costs,
            expected=f"at most {MAX_COST_POINTS} finite costs, of 0 to {MAX_DRAFT_TOKENS} draft tokens, ascending",
        )
    return points


def join_plans(plans: Sequence[StepPlan]) -> StepPlan:
    """Return the plan with the least limits and the highest costs of the plans, of which there is at least one.

    It holds for as many steps as all of the plans do, or as any of them without drafts does.
    """
    draft_length = min([plan.draft_length for plan in plans])
    budgets = [plan.token_budget for plan in plans if plan.token_budget is not None]
    caps: dict[str, int] = {}
    for plan in plans:
        for name, cap in plan.caps.items():
            if cap < caps.get(name, draft_length):
                caps[name] = cap
    costs = _dearest([plan.costs for plan in plans if plan.costs])
    without = [plan for plan in plans if not plan.draft_length]
    num_steps = max([it.num_steps for it in without], default=min([it.num_steps for it in plans]))
    return StepPlan(draft_length, min(budgets, default=None), caps, costs, num_steps, without[0].why if without else "")


def _dearest(curves: Sequence[tuple[CostPoint, ...]]) -> tuple[CostPoint, ...]:
    """Return the curve through the highest cost at the points of the curves, relative to that of no draft tokens.

    Between two points it may be higher than each.  Of too many points, the first and the last stay, and some between.
    """
    if len(curves) < 2:
        return curves[0] if curves else ()
    tokens = np.unique([0, *[point.draft_tokens for curve in curves for point in curve]])
    tokens = tokens[np.linspace(0, tokens.size - 1, min(tokens.size, MAX_COST_POINTS)).astype(int)]
    heights = np.array([np.interp(tokens, *np.array(curve).T) for curve in curves])
    return tuple(map(CostPoint, tokens.tolist(), (heights - heights[:, :1]).max(0).tolist()))


class JoinedPlanner(Planner):
    """The plan half of joined policies; `parts` holds their plan stages by name.

    A part that fails plans no speculation for that step, under its own name.
    """

    def __init__(self, parts: Mapping[str, PlanStage]) -> None:
        self._parts = parts
        self._plans: list[StepPlan] = []
        self._joined = _FAILED
        self.is_constant = all(stage.is_constant for stage in parts.values())

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the joined plan; the same object as before if all parts' plans are."""
        plans = [stage.constant_plan or stage.plan(stats) for stage in self._parts.values()]
        self.reads_requests = any(stage.reads_requests for stage in self._parts.values())
        if not self._plans or any(map(is_not, plans, self._plans)):
            self._plans = plans
            self._joined = join_plans(plans)
        return self._joined

    def observe(self, report: StepReport) -> None:
        for stage in self._parts.values():
            stage.observe(report)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        for stage in self._parts.values():
            stage.calibrate(costs)

    def longest_draft(self, batch_size: int) -> int:
        return min(stage.longest_draft(batch_size) for stage in self._parts.values())

    @property
    def learns(self) -> bool:
        return any(stage.learns for stage in self._parts.values())

    def status(self) -> dict[str, Any]:
        """Return the status of each part that reports one, by name."""
        found = {name: stage.status() for name, stage in self._parts.items()}
        return {name: status for name, status in found.items() if status}
