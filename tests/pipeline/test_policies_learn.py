"""Both halves of a policy receive outcomes, and one passes a price to the other."""

from __future__ import annotations

import pytest

from specplug.faults import FaultGuard
from specplug.interfaces import Planner, Trimmer
from specplug.pipeline.plan import PlanStage
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, Price, StepCost, StepPlan, StepReport
from tests.pipeline.tools import Recorder, drafts, rig_of, rows

REPORT = StepReport.build(7, 3, 2, [(3, 1), (2, 2)])


class Learns(Trimmer):
    """Cuts nothing, and records what it receives; raises while `fails`."""

    def __init__(self) -> None:
        self.reported, self.fails = [], False

    def trim(self, draft, limits):
        return draft

    def observe(self, batch, draft, verdict):
        if self.fails:
            raise ZeroDivisionError("planted")
        names = [[draft.sources[source] for source in row if source >= 0] for row in draft.source.tolist()]
        self.reported.append((drafts(draft), names, verdict.accepted.tolist()))


class Listens(Planner):
    """Plans draft length 2, and records what it receives."""

    def __init__(self) -> None:
        self.reports, self.fails = [], False

    def plan(self, stats):
        return StepPlan(2)

    def observe(self, report):
        self.reports.append(report)
        if self.fails:
            raise ZeroDivisionError("planted")

    def calibrate(self, costs):
        self.costs = costs
        self.observe(None)


@pytest.mark.parametrize("ceiling", [None, 0], ids=["on", "off"])
def test_costs_that_the_engine_profiled_reach_the_planner(ceiling):
    planner, guard = Listens(), FaultGuard("policy")
    stage, costs = PlanStage(planner, EngineCaps(8), guard, ceiling=ceiling), (StepCost(1, 1, 8, 0, 0.01),)
    stage.calibrate(costs)
    assert planner.costs is costs
    planner.fails = True
    stage.calibrate(costs)
    assert guard.counts == {"raised": 1}
    assert stage.plan(HostStats(0, ())).draft_length == (2 if ceiling is None else 0)


class TestThePlanHalf:
    def stage(self, planner):
        self.guard = FaultGuard("policy", max_consecutive=2, cooldown_steps=4)
        return PlanStage(planner, EngineCaps(8), self.guard)

    def test_it_is_reported_if_it_learns_and_left_alone_while_off(self):
        planner = Listens()
        stage = self.stage(planner)
        assert stage.learns
        stage.observe(REPORT)
        assert planner.reports == [REPORT]
        assert (REPORT.verified, REPORT.accepted) == (5, 3)
        planner.fails = True
        for _ in range(4):
            stage.observe(REPORT)
        assert len(planner.reports) == 3
        assert self.guard.counts == {"raised": 2, "switched off": 1}


class TestTheTrimHalf:
    def test_it_is_reported_of_what_it_let_through(self):
        trimmer = Learns()
        rig = rig_of(Recorder(rows([1, 2, 3], [4])), trimmer=trimmer)
        rig.start("a", [0])
        rig.start("b", [9])
        rig.draft()
        rig.verify({"b": 0, "a": 2})
        assert trimmer.reported == [([[4], [1, 2, 3]], [["only"], ["only"] * 3], [0, 2])]

    def test_what_it_raises_is_contained_and_it_is_left_alone_while_off(self):
        trimmer = Learns()
        trimmer.fails = True
        rig = rig_of(Recorder(), trimmer=trimmer, max_consecutive=2)
        rig.start("a", [0])
        for _ in range(4):
            rig.draft()
            rig.verify({"a": 0})
        assert rig.faults == {"trimmer": {"raised": 2, "switched off": 1}}


class TestPrices:
    def test_without_one_the_policy_is_not_requested(self):
        trimmer = Learns()
        trimmer.trim = None
        rig = rig_of(Recorder(), trimmer=trimmer)
        rig.start("a", [0])
        rig.draft()
        assert rig.faults == {}
        rig.draft(prices=(Price(0.1),))
        assert rig.faults == {"trimmer": {"raised": 1}}
