"""While the operator allows no drafts, no planner is called or sent reports; it goes on where it stopped."""

from __future__ import annotations

import random
from collections import deque

import pytest

from specplug.faults import FaultGuard
from specplug.interfaces import Planner, PluginContext
from specplug.pipeline.plan import PlanStage
from specplug.runtime.step_planner import UNREPORTED, Bounds, StepPlanner
from specplug.settings import load_settings
from specplug.settings.sources import ResolvedSettings
from specplug.types.caps import EngineCaps
from specplug.types.plan import NO_SPECULATION, HostStats, Price, StepPlan

CAPS = EngineCaps(8)
STATS = HostStats(0, ())


class Listens(Planner):
    """Plans anew at every step, and records what it is called with."""

    def __init__(self):
        self.planned, self.reported, self.costs = [], [], []

    def plan(self, stats):
        self.planned.append(stats.step)
        return StepPlan(3, 9, {"a": 1}, prices=(Price(0.5),))

    def observe(self, report):
        self.reported.append(report.step)
        self.costs.append(report.cost and report.cost.seconds)


@pytest.fixture
def planner():
    return Listens()


@pytest.fixture
def step_planner(planner, monkeypatch):
    stage = PlanStage(planner, CAPS, FaultGuard("policy"))
    monkeypatch.setattr("specplug.runtime.step_planner.build_plan_stage", lambda *_: stage)
    found = ResolvedSettings(settings=load_settings(env={}).settings, origins={})
    return StepPlanner(found, PluginContext(CAPS), str, len, lambda name: Bounds(100, 1))


def launch(step_planner: StepPlanner, began: float = 0.0):
    """Begin a step as adapters do."""
    return UNREPORTED if step_planner.is_off else step_planner.launch(began, 1, 4, 9, 3)


@pytest.mark.parametrize("order", [{"mode": "off"}, {"num_speculative_tokens": 0}])
def test_every_plan_is_one_object_and_looks_at_no_request(step_planner, planner, monkeypatch, order):
    step_planner.control.set(**order)
    monkeypatch.setattr(step_planner, "_identify", None)
    assert all(step_planner.make(["a", "b"]) is NO_SPECULATION for _ in range(5))
    assert not planner.planned
    assert step_planner.steps == 5


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_planner_plans_and_observes_all_other_steps(step_planner, planner, lag):
    """`lag` is how many steps are scheduled before the results of one arrive."""
    draw, in_flight, expected, verified = random.Random(lag), deque(), [], []
    for step in range(200):
        if draw.random() < 0.2:
            step_planner.control.set(mode=draw.choice(("on", "off")))
        if step and not step_planner.is_off:
            verified.append(step - 1)
        in_flight.append(launch(step_planner))
        plan = step_planner.make(["a", "b"])
        is_off = step_planner.control.state()["mode"] == "off"
        assert plan == (NO_SPECULATION if is_off else StepPlan(3, 9, {"a": 1, "b": 1}, prices=(Price(0.5),)))
        if not is_off:
            expected.append(step)
        if len(in_flight) > lag:
            step_planner.finish(in_flight.popleft(), [], 0.0)
    for begun in in_flight:
        step_planner.finish(begun, [], 0.0)
    assert planner.planned == expected
    assert planner.reported == verified
    assert 50 < len(expected) < 150


def test_a_step_that_waits_for_an_unreported_one_is_timed_from_its_end(step_planner, planner):
    step_planner.make(["a"])
    step_planner.control.set(mode="off")
    step_planner.make(["a"])
    unreported = launch(step_planner, 1.0)
    step_planner.control.set(mode="on")
    step_planner.make(["a"])
    reported = launch(step_planner, 1.25)
    step_planner.finish(unreported, [], 2.0)
    step_planner.finish(reported, [("a", 1, 1)], 2.75)
    assert (planner.reported, planner.costs) == ([2], [0.75])


def test_a_stage_that_is_off_calls_no_planner(planner):
    stage = PlanStage(planner, CAPS, FaultGuard("policy"), ceiling=0)
    assert stage.plan(STATS) is stage.settled is NO_SPECULATION
    stage.ceiling = None
    assert stage.settled is None
    assert stage.plan(STATS).draft_length == 3
    assert planner.planned == [0]
