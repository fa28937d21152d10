"""Planners with `is_constant` are not called at every step, and the plans are those of planners that are."""

from __future__ import annotations

import random

import pytest

from specplug.faults import FaultGuard
from specplug.interfaces import Planner, PluginContext
from specplug.pipeline.plan import PlanStage
from specplug.runtime.step_planner import Bounds, StepPlanner
from specplug.settings import load_settings
from specplug.settings.sources import ResolvedSettings
from specplug.types.caps import EngineCaps
from specplug.types.plan import StepPlan

CAPS = EngineCaps(8)


class Constant(Planner):
    """Makes one plan, and counts how often it is called."""

    def __init__(self, plan, *, is_constant):
        self._plan, self.is_constant, self.calls = plan, is_constant, 0

    def plan(self, stats):
        self.calls += 1
        return self._plan


@pytest.fixture
def built(monkeypatch):
    """Return a function that returns a planner and its step planner; "capped..." ids have a cap of their own."""

    def build(plan, *, is_constant):
        planner = Constant(plan, is_constant=is_constant)
        stage = PlanStage(planner, CAPS, FaultGuard("policy"))
        monkeypatch.setattr("specplug.runtime.step_planner.build_plan_stage", lambda *_: stage)
        found = ResolvedSettings(settings=load_settings(env={}).settings, origins={})

        def bounds(name):
            return Bounds(100, 1 if name.startswith("capped") else None)

        return planner, StepPlanner(found, PluginContext(CAPS), str, len, bounds)

    return build


@pytest.mark.parametrize("seed", range(20))
def test_they_plan_like_planners_that_are_called_at_every_step(built, seed):
    draw = random.Random(seed)
    plan = StepPlan(draw.choice((0, 0, 3)), draw.choice((None, 4)))
    (_, fast), (_, slow) = built(plan, is_constant=True), built(plan, is_constant=False)
    running: list[str] = []
    for step in range(60):
        if draw.random() < 0.3:
            running.append(f"{draw.choice(('capped', 'free'))} {step}")
        if running and draw.random() < 0.2:
            gone = running.pop(draw.randrange(len(running)))
            fast.forget([gone])
            slow.forget([gone])
        if draw.random() < 0.2:
            order = draw.choice(({"mode": "off"}, {"mode": "on"}, {"num_speculative_tokens": 2}))
            fast.control.set(**order)
            slow.control.set(**order)
        one, other = fast.make(running), slow.make(running)
        assert (one.draft_length, one.token_budget, one.prices) == (
            other.draft_length,
            other.token_budget,
            other.prices,
        )
        assert [one.draft_length_for(name) for name in running] == [other.draft_length_for(name) for name in running]
        assert fast.plan is one
        assert fast.steps == slow.steps == step + 1


def test_a_plan_without_drafts_is_one_object_and_looks_at_no_request(built, monkeypatch):
    planner, step_planner = built(StepPlan(0), is_constant=True)
    first = step_planner.make(["a"])
    monkeypatch.setattr(step_planner, "_identify", None)
    assert all(step_planner.make(["a", "b"]) is first for _ in range(5))
    assert planner.calls == 1


def test_only_planners_that_may_read_costs_are_told_of_them(built):
    assert not built(StepPlan(2), is_constant=True)[1].reads_costs
    assert built(StepPlan(2), is_constant=False)[1].reads_costs
