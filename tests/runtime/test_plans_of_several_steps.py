"""A plan without drafts may be for several steps, in which the planner is neither called nor sent reports."""

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
from specplug.types.plan import StepPlan

CAPS = EngineCaps(8)


class Rests(Planner):
    """Plans as it is given, and records the numbers of the steps that it plans and observes."""

    def __init__(self):
        self.next, self.planned, self.reported = StepPlan(0), [], []

    def plan(self, stats):
        self.planned.append(stats.step)
        return self.next

    def observe(self, report):
        self.reported.append(report.step)


@pytest.fixture
def planner():
    return Rests()


@pytest.fixture
def step_planner(planner, monkeypatch):
    stage = PlanStage(planner, CAPS, FaultGuard("policy"))
    monkeypatch.setattr("specplug.runtime.step_planner.build_plan_stage", lambda *_: stage)
    found = ResolvedSettings(settings=load_settings(env={}).settings, origins={})
    return StepPlanner(found, PluginContext(CAPS), str, len, lambda name: Bounds(100, None))


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_the_planner_plans_and_observes_the_first_step_of_each_plan(step_planner, planner, seed, lag):
    """`lag` is how many steps are scheduled before the results of one arrive."""
    draw, running, in_flight = random.Random(seed), ["a"], deque()
    planned, until, before = [], 0, 0
    for step in range(300):
        if draw.random() < 0.1:
            running = [str(name) for name in range(draw.randrange(1, 4))]
        if draw.random() < 0.1:
            step_planner.control.set(mode=draw.choice(("on", "on", "off")))
        is_off = step_planner.control.state()["mode"] == "off"
        planner.next = StepPlan(draw.choice((0, 0, 3)), num_steps=draw.choice((1, 2, 7)))
        held = step < until and len(running) == before
        if not held and not is_off:
            planned.append(step)
            until = 0 if planner.next.draft_length else step + planner.next.num_steps
        before = len(running)
        plan = step_planner.make(running)
        assert plan.draft_length == (0 if held or is_off else planner.next.draft_length)
        in_flight.append(step_planner.launch(0.0, 1, 4, 9, plan.draft_length))
        assert (in_flight[-1] is UNREPORTED) is step_planner.is_off is (held or is_off)
        if len(in_flight) > lag:
            step_planner.finish(in_flight.popleft(), [], 0.0)
    for begun in in_flight:
        step_planner.finish(begun, [], 0.0)
    assert planner.planned == planner.reported == planned
    assert 30 < len(planned) < 200


def test_a_held_plan_is_one_object_and_looks_at_no_request(step_planner, planner, monkeypatch):
    planner.next = StepPlan(0, num_steps=4)
    first = step_planner.make(["a"])
    monkeypatch.setattr(step_planner, "_identify", None)
    assert all(step_planner.make(["b"]) is first for _ in range(3))
    assert planner.planned == [0]


def test_plans_with_drafts_are_made_at_every_step(step_planner, planner):
    planner.next = StepPlan(2, num_steps=9)
    for _ in range(4):
        step_planner.make(["a"])
    assert planner.planned == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [2.5, "2", None])
def test_a_number_of_steps_that_is_none_is_contained(step_planner, planner, wrong):
    planner.next = StepPlan(0, num_steps=wrong)
    for _ in range(2):
        assert step_planner.make(["a"]) == StepPlan(0)
    assert planner.planned == [0, 1]
