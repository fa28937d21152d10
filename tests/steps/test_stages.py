"""The plan stage; and the draft stage's plain work: tokens are handed over once, limits hold, several may draft."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specplug.faults import FaultGuard
from specplug.interfaces import Planner
from specplug.steps.plan_stage import PlanStage
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import CostPoint, Outcome, StepCost, StepPlan
from tests.steps.tools import Recorder, Rig, drafts, int32, rig_of, rows, started


@pytest.fixture(params=["device", "host"])
def proposer(request):
    return Recorder(needs_host=request.param == "host", learns=True)


class TestDrafts:
    def test_dummy_steps_touch_nothing(self, proposer):
        rig = started(rig_of(proposer), a=[1, 2])
        rig.draft()
        calls = list(proposer.calls)
        dummy = replace(rig.batch(), lengths=int32([77]), generations=torch.tensor([9]), is_dummy=True)
        draft = rig.stage.trim(dummy, rig.stage.propose(dummy, 3), StepPlan(3, 0))
        outcome = Outcome(int32([4]), int32([4]), int32([5]))
        assert rig.stage.observe(dummy, outcome).proposed.tolist() == [0]
        assert drafts(draft) == [[]]
        assert draft.draft_length == 3
        assert proposer.calls == calls
        assert rig.metrics.snapshot().total.emitted == 0
        assert rig.verify({"a": 2}).proposed.tolist() == [4]  # what was in flight is still known
        rig.draft()
        assert proposer.handed == [{(0, 0): [1, 2]}, {(0, 0): [0, 0, 0]}]


class TestHandingOver:
    """Every token is handed over once: what the random schedules of `test_model` do not reach."""

    def test_a_row_that_was_cut_back_is_handed_over_from_the_cut(self, proposer):
        rig = rig_of(proposer)
        occupant = rig.start("a", [1, 2, 3, 4])
        rig.draft()
        occupant.tokens[:] = [1, 2]
        rig.draft()
        occupant.tokens[:] = [1, 2, 9]
        rig.draft()
        assert proposer.handed == [{(0, 0): [1, 2, 3, 4]}, {(0, 0): []}, {(0, 0): [9]}]

    def test_resets_of_steps_without_drafts_wait(self, proposer):
        rig = started(rig_of(proposer), a=[1])
        rig.draft(0, reset_slots=[0])
        rig.draft(2)
        rig.draft(2)
        assert proposer.resets == [(0,), ()]

    def test_tokens_and_resets_of_steps_spent_switched_off_wait(self, proposer):
        rig = started(rig_of(proposer, max_consecutive=1, cooldown_steps=3), a=[1])
        proposer.fails = {"propose"}
        rig.draft(reset_slots=[0])
        proposer.fails = set()
        for token in (2, 3, 4):
            rig.verify({"a": 0}, emitted={"a": [token]})
            if token == 3:
                rig.start("b", [10])
            assert not any(drafts(rig.draft(reset_slots=[1] if token == 3 else [])))
        assert drafts(rig.draft()) == [[5, 6, 7, 8], [11, 12, 13, 14]]
        assert proposer.handed == [{(0, 0): [1]}, {(0, 0): [2, 3, 4], (1, 0): [10]}]
        assert proposer.resets == [(0,), (1,)]
        rig.draft()
        assert proposer.resets[2:] == [()]
        assert rig.faults == {"only": {"raised": 1, "switched off": 1, "came back": 1}}


class TestSeveralProposers:
    def rig(self, **caps):
        self.up = Recorder(sources=("own", "other"), learns=True)
        self.down = Recorder(rows([9, 8], [9, 8], [9, 8]), learns=True)
        return Rig({"up": self.up, "down": self.down}, **caps)

    def test_requests_choose_and_who_is_not_chosen_only_ingests(self):
        rig = started(self.rig(), a=[1])
        rig.draft()
        assert (len(self.up.limits), len(self.down.limits)) == (1, 0)
        rig.start("b", [1], proposer="down")
        rig.start("c", [1], proposer="up")
        draft = rig.draft()
        assert drafts(draft) == [[2, 3, 4, 5], [9, 8], [2, 3, 4, 5]]
        assert draft.sources == rig.stage.sources == ("up/own", "up/other", "down")
        assert draft.source.tolist() == [[0] * 4, [2, 2, -1, -1], [0] * 4]
        assert self.up.limits[1:] == [[4, 0, 4]]
        assert self.down.limits == [[0, 4, 0]]
        rig.leave("b")
        rig.start("d", [1])  # in its slot: the choice ends with the request
        assert drafts(rig.draft()) == [[2, 3, 4, 5]] * 3
        assert (len(self.up.limits), len(self.down.limits)) == (3, 1)
        everything = [{(0, 0): [1]}, {(0, 0): [], (1, 0): [1], (2, 0): [1]}, {(0, 0): [], (2, 0): [], (1, 1): [1]}]
        assert self.up.handed == self.down.handed == everything, "all ingest every row"

    def test_each_observes_the_whole_batch_with_its_own_sources(self):
        rig = started(self.rig(), a=[1])
        rig.start("b", [1], proposer="down")
        rig.draft()
        rig.verify({"a": 1, "b": 2})
        [(_, up, _)], [(_, down, verdict)] = self.up.observed, self.down.observed
        assert drafts(up) == drafts(down) == [[2, 3, 4, 5], [9, 8]]
        assert (up.source.tolist(), up.sources) == ([[0] * 4, [-1] * 4], ("up/own", "up/other"))
        assert (down.source.tolist(), down.sources) == ([[-1] * 4, [0, 0, -1, -1]], ("down",))
        assert verdict.accepted.tolist() == [1, 2]
        by_source = rig.metrics.snapshot().by_source
        assert {name: counts.accepted for name, counts in by_source.items()} == {
            "up/own": 1,
            "up/other": 0,
            "down": 2,
            "none": 0,
        }


def fork(_batch, limits, draft):
    """Draft a weak branch, and a strong one of two nodes, where a row may be drafted."""
    for row, limit in enumerate(limits.tolist()):
        if limit:
            parents = None if draft.parents is None else [-1, -1, 1]
            draft.set_row(row, [10, 20, 21], [0.3, 0.6, 0.9], parents=parents)


class TestTrees:
    def test_they_stay_trees_where_the_engine_takes_them_also_for_those_who_observe(self):
        proposer = Recorder(fork, trees=True, learns=True)
        rig = started(rig_of(proposer, caps=EngineCaps(4, trees=True)), a=[1])
        draft = rig.draft()
        assert drafts(draft) == [[10, 20, 21]]
        rig.verify({"a": 2})
        [(_, seen, _)] = proposer.observed
        assert seen.parents.tolist() == draft.parents.tolist() == [[-1, -1, 1, -1]]

    @pytest.mark.parametrize(("trees", "tree"), [(True, [10, 20, 21]), (False, [20, 21])])
    def test_beside_chains_and_elsewhere_as_their_best_chain(self, trees, tree):
        rig = Rig({"tree": Recorder(fork, trees=True), "chain": Recorder()}, caps=EngineCaps(4, trees=trees))
        rig.start("a", [1])
        rig.start("b", [1], proposer="chain")
        draft = rig.draft()
        assert drafts(draft) == [tree, [2, 3, 4, 5]]
        assert (None if draft.parents is None else draft.parents.tolist()) == (
            [[-1, -1, 1, -1], [-1, 0, 1, 2]] if trees else None
        )
        assert (rig.draft(0).parents is not None) == trees


NAN = float("nan")
WRONG_COSTS = (
    [CostPoint(0, NAN)],
    [CostPoint(0, float("inf"))],
    "dear",
    [0.5],
    [CostPoint(1, 0.5), CostPoint(1, 0.6)],
    [CostPoint(2, 0.1), CostPoint(1, 0.2)],
    [CostPoint(-1, 0.1)],
    [CostPoint(1.5, 0.1)],
    [CostPoint(1 << 19, 0.1)],
    [CostPoint(place, 0.1) for place in range(65)],
)


class StepPlanner(Planner):
    """Returns the plan that it was given, or raises it; records reports and costs, and raises them while `fails`."""

    def __init__(self, plan) -> None:
        self.answer, self.reports, self.fails = plan, [], False

    def plan(self, stats):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def observe(self, report):
        self.reports.append(report)
        if self.fails:
            raise ZeroDivisionError("planted")

    calibrate = observe


class TestPlanStage:
    STATS = HostStats(0, ())

    def stage(self, plan, caps=None):
        self.guard = FaultGuard("policy", max_consecutive=2, cooldown_steps=2)
        return PlanStage(StepPlanner(plan), caps or EngineCaps(8), self.guard)

    @pytest.mark.parametrize(
        "answer",
        [
            ValueError("planted"),
            None,
            *map(StepPlan, (2.5, "4", None)),
            StepPlan(4, token_budget=0.5),
            *(StepPlan(0, num_steps=wrong) for wrong in (2.5, "2", None)),
            *(StepPlan(2, costs=wrong) for wrong in WRONG_COSTS),
        ],
    )
    def test_a_planner_that_fails_plans_no_speculation(self, answer):
        stage = self.stage(answer)
        assert stage.plan(self.STATS) == StepPlan(0)
        assert [*self.guard.counts.values()] == [1]

    @pytest.mark.parametrize(("rungs", "expected"), [((), [2, 0, 6, 6]), ((0, 3, 8), [0, 0, 3, 3])])
    def test_the_ceiling_can_change_while_serving_and_means_the_rung_below(self, rungs, expected):
        stage, found = self.stage(StepPlan(6, token_budget=9), EngineCaps(8, captured_draft_lengths=rungs)), []
        for stage.ceiling in (2, 0, 7, None):
            found.append(stage.plan(self.STATS).draft_length)
        assert found == expected
        assert stage.plan(self.STATS).token_budget == 9

    @pytest.mark.parametrize("ceiling", [None, 0], ids=["on", "off"])
    def test_costs_that_the_engine_profiled_reach_the_planner(self, ceiling):
        stage, costs = self.stage(StepPlan(2)), (StepCost(1, 1, 8, 0, 0.01),)
        stage.ceiling = ceiling
        for stage._planner.fails in (False, True):
            stage.calibrate(costs)
        assert stage._planner.reports == [costs, costs]
        assert self.guard.counts == {"raised": 1}
        assert stage.plan(self.STATS).draft_length == (2 if ceiling is None else 0)

    def test_it_is_reported_if_it_learns_and_left_alone_while_off(self):
        stage, report = self.stage(StepPlan(2)), StepReport.build(7, 3, 2, [(3, 1), (2, 2)])
        assert stage.learns
        stage.observe(report)
        assert stage._planner.reports == [report]
        assert (report.verified, report.accepted) == (5, 3)
        stage._planner.fails = True
        for _ in range(4):
            stage.observe(report)
        assert len(stage._planner.reports) == 3
        assert self.guard.counts == {"raised": 2, "switched off": 1}
