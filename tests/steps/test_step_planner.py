"""ServerPlanner: when it calls a planner, what it makes of the plans, and what it reports of steps."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from specplug.faults import FaultGuard
from specplug.interfaces import Planner, PluginContext
from specplug.operator.server_planner import ServerPlanner
from specplug.settings import load_settings
from specplug.settings.sources import ResolvedSettings
from specplug.steps.draft_report import DraftReport
from specplug.steps.plan_stage import OFF, PlanStage
from specplug.steps.step_planner import REPORT_EVERY, UNREPORTED, Bounds
from specplug.types.caps import EngineCaps
from specplug.types.plan import RequestStats, StepReport
from specplug.types.step import StepCost, StepPlan
from tests.steps.trim_tools import each_costs

CAPS = EngineCaps(8)
COSTS = each_costs(0.5)


class Listens(Planner):
    """Plans `next`, and records what it is called with."""

    def __init__(self, plan=StepPlan(2), *, is_constant=False):  # noqa: B008
        self.next, self.is_constant = plan, is_constant
        self.stats, self.reports = [], []

    def plan(self, stats):
        self.stats.append(stats)
        return self.next

    def observe(self, report):
        self.reports.append(report)

    @property
    def planned(self):
        return [stats.step for stats in self.stats]

    @property
    def reported(self):
        return [report.step for report in self.reports]


class Identified:
    """Identifies requests, and counts how often it does."""

    def __init__(self):
        self.count = 0

    def __call__(self, name):
        self.count += 1
        return name


OWN_CAPS = {"b": 1, "c": 9, "z": 0}
"""The caps that requests set themselves, by the first letter of their names."""


def launch(step_planner, began, *of_cost, **given):
    """Begin a step whose cost has these fields: requests, tokens, context tokens and draft length."""
    return step_planner.launch(began, StepCost(*of_cost, seconds=0.0), **given)


@pytest.fixture
def built(monkeypatch):
    """Return a function that returns the step planner of a planner."""

    def build(planner, identify=str):
        stage = PlanStage(planner, CAPS, FaultGuard("policy"))
        monkeypatch.setattr("specplug.operator.server_planner.build_plan_stage", lambda *_: stage)
        found = ResolvedSettings(settings=load_settings(env={}).settings, origins={})

        def bounds(name):
            return Bounds(100, OWN_CAPS.get(name[0]))

        return ServerPlanner(found, PluginContext(CAPS), identify, lambda name: 10 * len(name), bounds)

    return build


def go_on(draw, step, running, step_planner):
    """Start or end a request, or give an order, seldom; return whether one has ended."""
    if draw.random() < 0.1:
        running.append(f"{draw.choice('aadddddddbcz')}{step}")
    has_ended = len(running) > 1 and draw.random() < 0.1
    if has_ended:
        step_planner.forget([running.pop(draw.randrange(len(running)))])
    if draw.random() < 0.1:
        orders = {"mode": "on"}, {"mode": "on"}, {"mode": "off"}, {"num_speculative_tokens": 2}
        step_planner.control.set(**draw.choice(orders))
    return has_ended


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_the_planner_plans_and_observes_the_first_step_of_each_plan_while_drafts_are_allowed(
    built, seed, lag, is_constant
):
    """A constant plan is made once for each order; `lag` steps are scheduled before the results of one arrive.

    A plan of several steps holds while the limit and the number of requests stay, and one with drafts while the
    requests themselves do; all its steps with drafts are reported.
    """
    draw, identified, planner = random.Random(seed), Identified(), Listens(is_constant=is_constant)
    step_planner = built(planner, identified)
    running, in_flight, plan = ["a"], deque(), None
    planned, reported = [], []
    until, made_for, held_for = 0, 0, None  # the step up to which a plan holds, and for what
    held_with_drafts = 0
    wants_report = False
    next_report = 0  # many plans without drafts in a row are not all reported
    for step in range(200):
        has_ended = go_on(draw, step, running, step_planner)
        if step == 0 or not is_constant:
            num_steps = 1 if is_constant else draw.choice((1, 2, 7))
            length, caps = draw.choice(((0, {}), (3, {}), (3, {"a": 1})))
            planner.next = StepPlan(length, 9, caps, costs=COSTS, num_steps=num_steps)
        ceiling, newest, identified.count = step_planner.control.ceiling(), plan, 0
        has_drafts = plan is not None and plan.draft_length > 0
        newest_request = running[-1] if has_drafts else None
        is_same = (len(running), ceiling, newest_request) == held_for and not (has_ended and has_drafts)
        held, is_off = step < until and is_same, ceiling == 0
        plan = step_planner.make(running)
        rests = (held and not has_drafts) or is_off
        held_with_drafts += held and has_drafts
        if held or is_off:
            assert plan is (newest if held else OFF)
            assert not identified.count, "it looks at no request"
            held_for = held_for if held else None
        else:
            if not is_constant or made_for != ceiling:
                planned.append(step)
            made_for = ceiling
            until = 0 if plan.caps and plan.draft_length else step + planner.next.num_steps
            most = planner.next.draft_length if ceiling is None else min(planner.next.draft_length, ceiling)
            assert (plan.draft_length, plan.token_budget, plan.costs) == (most, 9, COSTS)
            for name in running:
                own = planner.next.caps.get(name, OWN_CAPS.get(name[0], most))
                assert plan.draft_length_for(name) == min(most, own)
            held_for = len(running), ceiling, running[-1] if plan.draft_length else None
        assert step_planner.plan is plan
        assert step_planner.steps == step + 1
        in_flight.append(launch(step_planner, 0.0, 1, 4, 9, plan.draft_length))
        assert (in_flight[-1] is UNREPORTED) is step_planner.is_off is rests
        if not rests:
            is_first = plan.num_steps > 1 and step >= next_report
            wants_report = plan.draft_length > 0 or is_first or step % REPORT_EVERY == 0
            next_report = (0 if plan.draft_length else step + REPORT_EVERY) if wants_report else next_report
        assert step_planner.wants_report is (wants_report and not rests)
        if in_flight[-1] is not UNREPORTED:
            reported.append(step)
        if len(in_flight) > lag:
            step_planner.finish(in_flight.popleft(), [], 0.0)
    for begun in in_flight:
        step_planner.finish(begun, [], 0.0)
    step_planner.make([])  # while a plan holds, results are kept
    assert planner.planned[: len(planned)] == planned
    assert planner.planned[len(planned) :] in ([], [200])
    assert planner.reported == reported
    assert is_constant or len(reported) == len(planned) + held_with_drafts
    assert is_constant or held_with_drafts > 3
    assert 50 < len(reported) < 200


def test_adapters_may_begin_a_step_before_they_plan_its_drafts(built):
    """Then it is reported with the plan before, whose drafts it verifies."""
    planner = Listens()
    step_planner = built(planner)
    for mode in ("on", "on", "off", "on"):
        step_planner.control.set(mode=mode)
        begun = launch(step_planner, 0.0, 1, 4, 9, 2)
        step_planner.make(["a"])
        step_planner.finish(begun, [], 0.0)
    assert (planner.planned, planner.reported) == ([0, 1, 3], [0, 1])


def test_figures_are_computed_only_when_read(built, monkeypatch):
    planner = Listens()
    step_planner = built(planner)
    monkeypatch.setattr(step_planner, "_measure", None)
    step_planner.make(["a", "bb"])
    assert len(planner.stats[-1].requests) == 2
    monkeypatch.setattr(step_planner, "_measure", len)
    assert [(r.request_id, r.length, r.room) for r in planner.stats[-1].requests] == [("a", 1, 99), ("bb", 2, 98)]


def test_steps_are_reported_with_their_plan_and_cost(built):
    planner = Listens()
    step_planner = built(planner)
    step_planner.make(["a", "aa"])
    step = launch(step_planner, 1.0, 2, 6, 30, 2)
    step_planner.make(["a", "aa"])  # the host runs ahead
    step_planner.finish(step, [("a", 2, 1), ("aa", 1, 1)], 1.5)
    cost = StepCost(requests=2, tokens=6, context_tokens=30, draft_length=2, seconds=0.5)
    assert planner.reports == [StepReport(0, 2, 2, 2, 3, 2, cost, [(0, 2), (0, 2)])]
    step_planner.make(["a", "aa"])
    assert [stats.last_step for stats in planner.stats] == [None, None, cost]
    assert [(r.verified, r.accepted) for r in planner.stats[-1].requests] == [(2, 1), (1, 1)]


def test_what_drafts_were_expected_to_yield_is_reported_with_their_step(built):
    planner = Listens(StepPlan(0))
    step_planner = built(planner)
    step_planner.make(["a", "aa"])
    step = launch(step_planner, 1.0, 2, 2, 30, 0)
    step_planner.finish(step, [], 1.5, DraftReport.of(1, [0.5, 0.25]))
    (report,) = planner.reports
    assert (report.draft_length, report.expected, report.expected_rows) == (0, [0.5, 0.25], 1)


def test_a_report_is_read_at_once_as_its_memory_is_used_again(built):
    """While a plan of several steps holds, results are counted later."""
    planner = Listens(StepPlan(1, num_steps=3))
    step_planner = built(planner)
    memory = np.array([2, 1 << 12], np.int64)
    for _ in range(3):
        step_planner.make(["a", "aa"])
        step = launch(step_planner, 1.0, 2, 4, 30, 1)._replace(rows=("a", "aa"))
        step_planner.finish(step, [], 1.5, DraftReport(memory))
        memory += 1 << 12
        assert not any(kept.rows for kept, *_ in step_planner._unread), "requests are let go"
    step_planner.make(["a", "aa"])
    assert [report.expected for report in planner.reports] == [[1.0], [2.0], [3.0]]


def test_a_policy_that_does_not_learn_wants_no_report(built):
    class Plans(Planner):
        def plan(self, stats):
            return StepPlan(2)

    step_planner = built(Plans())
    step_planner.make(["a"])
    assert not step_planner.wants_report


def test_a_constant_plan_of_a_policy_that_does_not_learn_holds_while_its_requests_stay(built):
    class Constant(Planner):
        is_constant = True

        def plan(self, stats):
            return StepPlan(2)

    identified = Identified()
    step_planner = built(Constant(), identified)
    for running, caps in ((["a"], {}), (["d", "b"], {"b": 1}), (["d"], {})):
        for step in range(4):
            identified.count = 0
            assert step_planner.make(running) == StepPlan(2, caps=caps)
            assert (identified.count == 0) is (step > 0 and not caps)
        step_planner.finish(launch(step_planner, 1.0, 1, 3, 9, 2), [(running[0], 2, 1)], 2.0)
        step_planner.forget(running[1:])
    step_planner.control.set(num_speculative_tokens=1)
    assert step_planner.make(["d"]).draft_length == 1
    step_planner.forget(["d"])
    assert step_planner.make(["c"]).caps == {"c": 1}
    assert step_planner.last_step is None, "nothing reads it"


def test_counts_of_single_requests_are_kept_only_while_the_planner_reads_them(built):
    planner = Listens()
    step_planner = built(planner)
    for planner.reads_requests in (True, False, True):
        step_planner.make(["a", "bb"])
        step_planner.finish(launch(step_planner, 1.0, 2, 6, 20, 2), [("a", 2, 2), ("bb", 1, 0)], 2.0)
    assert [report.runs for report in planner.reports] == [[(0, 3), (0, 1)], [], [(0, 3), (0, 1)]]
    assert [(report.verified, report.accepted) for report in planner.reports] == [(3, 2)] * 3
    counted = [RequestStats("a", 10, 90, None, 4, 4, 0), RequestStats("bb", 20, 80, 1, 2, 0, 2)]
    step_planner.make(["a", "bb"])
    assert list(planner.stats[-1].requests) == counted


def test_a_run_goes_on_while_drafts_are_accepted_in_full_and_ends_with_a_step_without(built):
    planner = Listens()
    step_planner = built(planner)
    for drafted, accepted in ((2, 2), (2, 2), (2, 1), (2, 2), (0, 0), (2, 0), (1, 1)):
        step_planner.make(["a"])
        results = [("a", drafted, accepted)] if drafted else []
        step_planner.finish(launch(step_planner, 1.0, 1, 3, 9, 2), results, 2.0)
    runs = [run for report in planner.reports for run in report.runs]
    assert runs == [(0, 3), (3, 6), (6, 8), (0, 3), (0, 1), (0, 2)]


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_step_that_waits_for_the_one_before_it_is_timed_from_its_end(built, mode):
    """Also if that one is not reported."""
    planner = Listens()
    step_planner = built(planner)
    step_planner.control.set(mode=mode)
    step_planner.make(["a"])
    first = launch(step_planner, 1.0, 1, 3, 9, 2)
    step_planner.control.set(mode="on")
    step_planner.make(["a"])
    second = launch(step_planner, 1.25, 1, 3, 9, 2)
    step_planner.finish(first, [], 2.0)
    step_planner.finish(second, [("a", 1, 1)], 2.75)
    assert planner.reported == ([0, 1] if mode == "on" else [1])
    assert step_planner.last_step.seconds == planner.reports[-1].cost.seconds == 0.75


def test_what_is_not_timed_is_reported_without_a_cost(built):
    planner = Listens()
    step_planner = built(planner)
    step_planner.make(["a"])
    step_planner.finish(launch(step_planner, 1.0, 1, 3, 9, 2, timed=False), [("a", 2, 0), ("gone", 2, 0)], 2.0)
    assert step_planner.last_step is None
    assert (planner.reports[0].cost, planner.reports[0].verified) == (None, 4)


@pytest.mark.parametrize(
    ("planned", "verified", "is_timed"), [(5, 0, False), (5, 5, True), (0, 5, False), (0, 0, True)]
)
def test_a_step_at_which_drafting_begins_or_ends_has_no_cost(built, planned, verified, is_timed):
    step_planner = built(Listens())
    step_planner.plan = StepPlan(planned)
    assert (launch(step_planner, 0.0, 4, 4 + 4 * verified, 400, verified).cost is not None) is is_timed


def test_a_step_that_nobody_planned_is_not_reported(built):
    planner = Listens()
    step_planner = built(planner)
    step_planner.finish(launch(step_planner, 1.0, 1, 20, 9, 0), [], 1.25)
    assert planner.reports == []
    assert step_planner.last_step.tokens == 20
