"""Joined policies: the limits of all plans hold together, and each part works, and fails, under its own name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.assembly import build_plan_stage
from specplug.errors import PluginError
from specplug.faults import FaultGuard
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import PolicySpec, trimming_policy
from specplug.settings import Settings
from specplug.steps.plan_stage import JoinedPlanner, PlanStage, checked_costs, join_plans
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, RequestStats, StepReport
from specplug.types.step import MAX_COST_POINTS, CostPoint, StepPlan

NAMES = ("a", "b", "c", "d")


@st.composite
def curves(draw: st.DrawFn) -> tuple[CostPoint, ...]:
    places = sorted(draw(st.sets(st.integers(0, 300), max_size=MAX_COST_POINTS)))
    return tuple([CostPoint(place, draw(st.floats(-2.0, 9.0))) for place in places])


plans = st.builds(
    StepPlan,
    st.integers(0, 16),
    st.none() | st.integers(0, 50),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 16)),
    curves(),
    st.integers(1, 40),
)


@given(st.lists(plans, min_size=1, max_size=4))
def test_every_limit_of_every_plan_holds_and_no_other(parts):
    found = join_plans(parts)
    for name in (*NAMES, "uncapped"):
        assert found.draft_length_for(name) == min(part.draft_length_for(name) for part in parts)
    for places in (0, 7, 1000):
        assert found.budget_of(places) == min(part.budget_of(places) for part in parts)
    assert all(cap < found.draft_length for cap in found.caps.values()) or len(parts) == 1
    rests = [part.num_steps for part in parts if not part.draft_length]
    assert found.num_steps == (max(rests) if rests else min(part.num_steps for part in parts))
    assert checked_costs(found.costs) == found.costs
    stated = [part.costs for part in parts if part.costs]
    points = {0, *(point.draft_tokens for costs in stated for point in costs)}
    if len(points) > MAX_COST_POINTS and len(stated) > 1:
        return
    for count in range(302):
        highest = max([cost_of(costs, count) for costs in stated], default=0.0)
        is_exact = count in points or len(stated) < 2
        assert cost_of(found.costs, count) >= highest - 1e-9
        assert not is_exact or cost_of(found.costs, count) == pytest.approx(highest)


def cost_of(costs: tuple[CostPoint, ...], count: int) -> float:
    """Return what so many draft tokens cost beyond none."""
    return float(np.subtract(*np.interp([count, 0], *zip(*costs, strict=True)))) if costs else 0.0


def test_of_too_many_points_the_ends_stay_and_points_near_to_all_others():
    bent = tuple([CostPoint(10 * place, 0.1 * place**2) for place in range(MAX_COST_POINTS)])
    lower = tuple([CostPoint(point.draft_tokens + 5, -1.0) for point in bent])
    found = join_plans([StepPlan(4, costs=bent), StepPlan(4, costs=lower)]).costs
    tokens = [point.draft_tokens for point in found]
    assert (len(found), tokens[0], tokens[-1]) == (MAX_COST_POINTS, 0, 635)
    assert np.diff(tokens).max() <= 15
    assert all(cost_of(found, place.draft_tokens) >= place.cost - 1e-9 for place in bent[:-1])


class Part(Planner):
    """Plans what it is told, and keeps the reports."""

    def __init__(self, *sequence: Any, longest: int | None = None, is_constant: bool = False) -> None:
        self.sequence, self.longest, self.is_constant = list(sequence), longest, is_constant
        self.reports: list[StepReport] = []

    def plan(self, stats: HostStats) -> StepPlan:
        found = self.sequence.pop(0) if len(self.sequence) > 1 else self.sequence[0]
        if isinstance(found, Exception):
            raise found
        return found

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)

    def longest_draft(self, batch_size: int) -> int | None:
        return self.longest

    def status(self) -> dict[str, Any]:
        return {"planned": len(self.sequence)}


class Silent(Planner):
    """Neither learns nor reports a status."""

    is_constant = True

    def plan(self, stats: HostStats) -> StepPlan:
        return StepPlan(9)


class OtherTrimmer(SurvivalTrimmer):
    """The trim half of a policy that has its own."""


def stage_of(faults: Counter[tuple[str, str]] | None = None, **planners: Planner) -> PlanStage:
    """Return the stage of joined policies, by name; `faults` counts theirs."""
    caps, counts = EngineCaps(8), Counter() if faults is None else faults

    def guard(name: str) -> FaultGuard:
        return FaultGuard(name, sink=lambda *fault: counts.update([fault]))

    parts = {name: PlanStage(planner, caps, guard(f"policy {name}")) for name, planner in planners.items()}
    return PlanStage(JoinedPlanner(parts), caps, guard("joined"))


def test_the_parts_are_planned_reported_and_asked_together():
    one, other = Part(StepPlan(6), StepPlan(3), longest=7), Part(StepPlan(5, caps={"a": 1}), longest=4)
    stage = stage_of(one=one, other=other, silent=Silent())
    assert [stage.plan(HostStats(step, ())) for step in range(2)] == [
        StepPlan(5, caps={"a": 1}),
        StepPlan(3, caps={"a": 1}),
    ]
    assert stage.plan(HostStats(2, ())) is stage.plan(HostStats(3, ()))  # where nothing changed, nothing is built
    report = StepReport.build(0, 5, 1, [(5, 2)])
    stage.observe(report)
    assert one.reports == other.reports == [report]
    assert stage.longest_draft(3) == 4
    assert stage.status() == {"one": {"planned": 1}, "other": {"planned": 1}}
    assert (stage.learns, stage.is_constant) == (True, False)


def test_single_requests_are_counted_while_a_part_reads_them_that_is_asked_for_plans():
    one, other = Part(StepPlan(6)), Part(StepPlan(5))
    stage = stage_of(one=one, other=other, silent=Silent())
    for one.reads_requests, other.reads_requests in ((True, True), (False, True), (False, False), (True, False)):
        stage.plan(HostStats(0, ()))
        assert stage.reads_requests is (one.reads_requests or other.reads_requests)
    assert Silent().reads_requests
    assert not stage_of(silent=Silent()).reads_requests


def test_settings_name_the_policies_that_are_joined():
    context = PluginContext(EngineCaps(8), max_slots=2)
    stage = build_plan_stage(Settings(policy="batch+fixed"), default_registry(), context, lambda *_: None)
    assert "batch" in stage.status()
    assert stage.plan(HostStats(0, (RequestStats("a", 5, 50),))).draft_length <= 8


def test_joined_constant_plans_are_constant():
    stage = stage_of(one=Silent(), other=Silent())
    assert stage.constant_plan is None
    stage.plan(HostStats(0, ()))
    assert stage.constant_plan == StepPlan(8)  # fitted to the engine
    assert not stage.learns


def test_a_part_that_fails_stops_drafts_under_its_own_name_and_the_others_go_on_learning():
    faults: Counter[tuple[str, str]] = Counter()
    good, bad = Part(StepPlan(4)), Part(ValueError("boom"), StepPlan(2))
    stage = stage_of(faults, good=good, bad=bad)
    assert [stage.plan(HostStats(step, ())).draft_length for step in range(2)] == [0, 2]
    assert faults == {("policy bad", "raised"): 1}

    def fails(report: StepReport) -> None:
        raise ValueError("boom")

    bad.observe = fails  # type: ignore[method-assign]
    stage.observe(StepReport.build(0, 2, 1, [(2, 1)]))
    assert len(good.reports) == 1
    assert faults == {("policy bad", "raised"): 2}


def test_the_trim_half_is_that_of_the_part_that_has_its_own():
    trimmers = {"plain": {}, "own": {"trimmer": OtherTrimmer}, "second": {"trimmer": OtherTrimmer}}
    plain, *own = (
        PolicySpec(name=name, factory=lambda _: Silent(), summary="", **trimmer) for name, trimmer in trimmers.items()
    )
    assert [trimming_policy(specs).name for specs in ([plain], [plain, own[0]])] == ["plain", "own"]
    with pytest.raises(PluginError, match="'own' and 'second'; expected at most one"):
        trimming_policy([plain, *own])
