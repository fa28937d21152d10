"""Several policies as one: the plan under which the limits of all their plans hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from specplug.interfaces import Planner
from specplug.pipeline.plan import PlanStage
from specplug.types.plan import MOST_PRICES, HostStats, Price, StepPlan, StepReport


def joined(plans: Sequence[StepPlan]) -> StepPlan:
    """Return the plan that allows what each of the plans, at least one, allows.

    It has the least draft length, the least token budget, each request's least cap, the highest entry, and at any
    number of draft tokens the dearest price.  If those are more than `MOST_PRICES`, some rise earlier than they have
    to.  It holds for as many steps as any plan without drafts does.
    """
    draft_length = min([plan.draft_length for plan in plans])
    budgets = [plan.token_budget for plan in plans if plan.token_budget is not None]
    caps: dict[str, int] = {}
    for plan in plans:
        for name, cap in plan.caps.items():
            if cap < caps.get(name, draft_length):
                caps[name] = cap
    prices = _dearest([plan.prices for plan in plans])
    num_steps = max([plan.num_steps for plan in plans if not plan.draft_length], default=1)
    entry = max([plan.entry for plan in plans])
    return StepPlan(draft_length, min(budgets, default=None), caps, prices, entry, num_steps)


def price_after(prices: Sequence[Price], count: int) -> float:
    """Return the survival probability that the draft token after `count` others has to have."""
    return max([price.survival for price in prices if price.after <= count], default=0.0)


def _dearest(lists: Sequence[tuple[Price, ...]]) -> tuple[Price, ...]:
    """Return the prices that are, after any number of tokens, the highest of the lists."""
    stated = [prices for prices in lists if prices]
    if len(stated) < 2:
        return stated[0] if stated else ()
    found: list[Price] = []
    for count in sorted({price.after for prices in stated for price in prices}):
        survival = max([price_after(prices, count) for prices in stated])
        if not found or survival > found[-1].survival:
            found.append(Price(survival, count))
    while len(found) > MOST_PRICES:
        rises = [(high.survival - low.survival) * (high.after - low.after) for low, high in pairwise(found)]
        at = rises.index(min(rises))
        found[at : at + 2] = [Price(found[at + 1].survival, found[at].after)]
    return tuple(found)


class JoinedPlanner(Planner):
    """The plan half of joined policies.

    Args:
        parts: the plan stage of each policy, by name.  A part that fails plans no speculation for that step, under its
            own name.
    """

    def __init__(self, parts: Mapping[str, PlanStage]) -> None:
        self._parts, self._stages = parts, tuple(parts.values())
        self._newest: tuple[tuple[StepPlan, ...], StepPlan] | None = None
        self.is_constant = all(stage.is_constant for stage in self._stages)

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the joined plan; the same object as before if all parts' plans are."""
        plans = tuple([stage.settled or stage.plan(stats) for stage in self._stages])
        if self._newest is None or any(map(_differ, plans, self._newest[0])):
            self._newest = plans, joined(plans)
        return self._newest[1]

    def observe(self, report: StepReport) -> None:
        """Pass the report to the parts that learn."""
        for stage in self._stages:
            stage.observe(report)

    def longest_draft(self, batch_size: int) -> int:
        """Return the longest draft that all parts may plan."""
        return min(stage.longest_draft(batch_size) for stage in self._stages)

    @property
    def learns(self) -> bool:
        """True if a part learns."""
        return any(stage.learns for stage in self._stages)

    def status(self) -> dict[str, Any]:
        """Return the status of each part that reports one, by name."""
        found = {name: stage.status() for name, stage in self._parts.items()}
        return {name: status for name, status in found.items() if status}


def _differ(one: StepPlan, other: StepPlan) -> bool:
    return one is not other
