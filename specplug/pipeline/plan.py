"""The plan stage: runs the plan half of a policy on the host, in the scheduler's process or inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import index
from typing import Any

from specplug.errors import ContractError
from specplug.faults import FaultGuard, status_of
from specplug.interfaces import Planner
from specplug.types.caps import EngineCaps
from specplug.types.plan import MOST_PRICES, NO_SPECULATION, HostStats, Price, StepCost, StepPlan, StepReport


class PlanStage:
    """The host half.  If a planner raises, the step does not speculate, which is never slower than the engine alone."""

    def __init__(self, planner: Planner, caps: EngineCaps, guard: FaultGuard, *, ceiling: int | None = None) -> None:
        self._planner, self._caps, self._guard = planner, caps, guard
        self._learns, self.is_constant = planner.learns, planner.is_constant
        self._newest: tuple[StepPlan, int | None, StepPlan] | None = None  # a plan, the ceiling, and the fitted plan
        self.ceiling = ceiling
        """The operator's limit on the draft length, changeable while serving; 0 stops drafting, None is no limit."""

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the plan of a step, with a draft length that the engine can run."""
        plans = [NO_SPECULATION]
        if not self.is_off and self._guard.admits_step():
            self._guard.step(lambda: plans.append(self._fitted(self._planner.plan(stats))))
        return plans[-1]

    def longest_draft(self, batch_size: int) -> int:
        """Return the most draft tokens per row that plans for B requests have, as far as the planner knows."""
        found: list[int] = []

        def ask() -> None:
            longest = self._planner.longest_draft(batch_size)
            found.append(self._caps.max_draft_length if longest is None else index(longest))

        most = self._caps.max_draft_length
        return min(found[0], most) if self._guard.call(ask) else most

    @property
    def is_off(self) -> bool:
        """True if the operator allows no drafts.  The planner is then neither called nor sent reports."""
        return self.ceiling == 0

    @property
    def settled(self) -> StepPlan | None:
        """The plan of every step under the present ceiling, as `plan` returns it; None if `plan` must be called."""
        if self.is_off:
            return NO_SPECULATION
        known = self._newest
        return known[2] if self.is_constant and known is not None and known[1] == self.ceiling else None

    @property
    def learns(self) -> bool:
        """True if the planner wants reports."""
        return self._learns

    @property
    def reads_costs(self) -> bool:
        """True if the planner may read what steps cost."""
        return self._learns or not self.is_constant

    def status(self) -> dict[str, Any]:
        """Return what the planner reports of itself, {"error": ...} if that fails; empty if it reports nothing."""
        return status_of(self._guard.name, self._planner)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Pass costs that the engine profiled at start-up to the planner, also if the operator allows no drafts."""
        self._guard.call(partial(self._planner.calibrate, costs))

    def observe(self, report: StepReport) -> None:
        """Pass a step's report to the planner if it learns."""
        if self._learns and not self._guard.is_off:
            self._guard.call(partial(self._planner.observe, report))

    def _fitted(self, plan: StepPlan) -> StepPlan:
        """Check a plan and fit it to the engine.  Planners often return the plan of the step before."""
        known = self._newest
        if known is None or known[0] is not plan or known[1] != self.ceiling:
            known = self._newest = plan, self.ceiling, self._fit(plan)
        return known[2]

    def _fit(self, plan: StepPlan) -> StepPlan:
        draft_length = index(plan.draft_length)  # raises on a fraction here, where the error is contained
        _check(plan.prices, plan.entry)
        budget = None if plan.token_budget is None else index(plan.token_budget)
        if self.ceiling is not None:
            draft_length = min(draft_length, self.ceiling)
        fitted = self._caps.fit_draft_length(draft_length)
        return replace(plan, draft_length=fitted, token_budget=budget, num_steps=index(plan.num_steps))


def _check(prices: Sequence[Price], entry: float) -> None:
    """Refuse prices that fall, are negative or no numbers, or are too many, and an entry that is negative or none."""
    if not entry >= 0.0:
        raise ContractError.build("the entry of a plan is no cost", found=entry, expected="a number from 0 on")
    ends = [(0.0, 0), *prices]
    rises = all(one[0] <= other[0] and one[1] <= index(other[1]) for one, other in pairwise(ends))  # false of NaN too
    if not rises or len(prices) > MOST_PRICES:
        raise ContractError.build(
            "the prices of a plan do not rise", found=prices, expected=f"at most {MOST_PRICES}, ascending from 0"
        )
