"""The benchmark of the policy `batch` on running engines: its arms, order, statistics and table, without an engine."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

import specplug
from benchmarks.never_engines import OFF, PLUGINS, POLICY, Arm
from benchmarks.never_report import Block, cells, hopeful, in_order, rejected, summarise, table
from benchmarks.never_slower import KINDS, arguments, prompts, requests_of
from specplug import EngineCaps, HostStats, PluginContext, Ragged, StepPlan, StepReport
from specplug.types.plan import StepCost

ARMS: tuple[Arm, ...] = (OFF, POLICY, 1, 3)


def block(arm: Arm, seconds: float, ids: list[int], **counts: int) -> Block:
    """Return a block of one answer, of the policy's steps from "first" to "last" if they are given."""
    first, last = counts.pop("first", 0), counts.pop("last", 0)
    policy = {
        "before": {"steps": first, "verified": first, "accepted": 0},
        "after": {"steps": last, "verified": last, "accepted": 0},
    }
    worker = {"target_steps": len(ids), "proposed": 0, "verified": 0, "accepted": 0, **counts}
    return Block(arm, [ids], seconds, policy=policy, **worker)


def one_round(ids: list[int], **seconds: float) -> dict[Arm, Block]:
    """Return a round whose arms answer alike, in the given seconds."""
    named = {"off": OFF, "policy": POLICY, "one": 1, "three": 3}
    return {named[name]: block(named[name], taken, ids) for name, taken in seconds.items()}


def test_every_round_has_all_arms_in_an_order_of_its_own():
    orders = [in_order(ARMS, number) for number in range(20)]
    assert all(sorted(order, key=str) == sorted(ARMS, key=str) for order in orders)
    assert len(set(map(tuple, orders))) > 10
    assert {order.index(POLICY) for order in orders} == {0, 1, 2, 3}
    assert in_order(ARMS, 7) == orders[7]


def test_constant_lengths_far_from_the_best_are_dropped():
    rounds = [one_round([1, 2], off=9.0, policy=9.0, one=1.0, three=1.3)] * 3
    assert hopeful(rounds) == [OFF, POLICY, 1]
    rounds = [one_round([1, 2], off=9.0, policy=9.0, one=1.0, three=1.2)] * 3
    assert hopeful(rounds) == [OFF, POLICY, 1, 3]


def test_ratios_are_of_the_rounds_after_the_warm_up():
    slow = one_round([1, 2, 3, 4], off=1.0, policy=9.0, one=9.0, three=9.0)
    rounds = [slow, *[one_round([1, 2, 3, 4], off=4.0, policy=1.0 + n / 10, one=2.0, three=3.0) for n in range(5)]]
    row = summarise(rounds, 1, sampled=False, timed=True)
    assert row["blocks"] == 5
    assert row["to_none"] == pytest.approx((4 / 1.2, 4 / 1.4, 4.0))
    assert (row["best_fixed"], row["best_fixed_to_none"]) == (1, (2.0, 2.0, 2.0))
    assert row["to_best_fixed"][0] == pytest.approx(2 / 1.2)
    assert row["tau"] == 1.0
    assert (row["differing"], row["answers"]) == (0, 24)


def test_a_wrong_answer_leaves_no_ratio():
    rounds = [one_round([1, 2], off=2.0, policy=1.0, one=1.0) for _ in range(3)]
    rounds[1][POLICY] = block(POLICY, 1.0, [1, 3])
    row = {"traffic": "easy", "concurrency": 1, **summarise(rounds, 1, sampled=False, timed=True)}
    assert row["differing"] == 1
    assert "to_none" not in row
    assert "outputs differ" in cells(row)
    assert "8 of 9" in cells(row)
    assert summarise(rounds, 1, sampled=True, timed=True)["to_none"] == (2.0, 2.0, 2.0)
    rounds[1][POLICY] = block(POLICY, 1.0, [1])
    assert summarise(rounds, 1, sampled=True, timed=True)["differing"] == 1


def test_rejected_tokens_are_counted_once_the_policy_has_learnt():
    first = block(POLICY, 1.0, [1] * 150, first=50, last=200, verified=70)
    second = block(POLICY, 1.0, [1] * 150, first=200, last=350, verified=40)
    third = block(POLICY, 1.0, [1] * 150, first=350, last=500, verified=8, accepted=2)
    assert rejected([first, second]) is None
    assert rejected([first, second, third]) == {"steps": 150, "emitted": 150, "drafts": 6, "positions": 150}


def test_the_table_shows_shares_and_what_is_only_counted(capsys):
    blocks = [block(POLICY, 1.0, [1] * 200, first=0, last=200), block(POLICY, 1.0, [1] * 200, first=200, last=201)]
    row = summarise([{POLICY: one} for one in blocks], 0, sampled=True, timed=False)
    found = cells({"traffic": "hopeless", "concurrency": 4, **row})
    assert found == ("hopeless", "4", "", "", "", "", "1.00", "", "0.00%", "0.50%", "2 of 2")
    table([{"traffic": "hopeless", "concurrency": 4, **row}], "a title")
    assert "0.50%" in capsys.readouterr().out


def test_prompts_are_of_all_kinds_and_other_ones_in_each_round():
    for traffic, kinds in KINDS.items():
        given, others = prompts(traffic, requests_of(4), 1), prompts(traffic, requests_of(4), 2)
        assert len(given) == requests_of(4) > len(kinds)
        assert given == prompts(traffic, requests_of(4), 1)
        assert not set(given) & set(others)
    assert all(requests_of(concurrency) > concurrency for concurrency in (1, 4, 8, 32))


def test_at_least_twenty_blocks_are_counted_by_default():
    assert arguments().parse_args(["--engine", "sglang"]).rounds >= 20


# -- the policy that stands for the arms ------------------------------------------------------------------------------


class Learnt(specplug.Planner):
    """Notes what it is given."""

    def __init__(self, context: PluginContext) -> None:
        self.options, self.planned, self.reports = context.options, [], []

    def plan(self, stats: HostStats) -> StepPlan:
        self.planned.append((stats.step, stats.last_step))
        return StepPlan(2)

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)


@pytest.fixture
def arms(monkeypatch):
    """The policy, with one in place of `batch` that notes what it is given."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    module = importlib.import_module("specplug_arms")
    spec = specplug.PolicySpec(name="batch", factory=Learnt, summary="notes")
    monkeypatch.setattr(module, "default_registry", lambda: type("Registry", (), {"get": lambda *_: spec}))
    caps = EngineCaps(max_draft_length=8, ragged=Ragged.PADDED)
    return module.Arms(PluginContext(caps=caps, options="not the policy's"))


def step(arms, number, verified=0, accepted=0, cost=None):
    """Plan a step and report it."""
    plan = arms.plan(HostStats(number, ()))
    arms.observe(StepReport(number, plan.draft_length, 3, 3, verified, accepted, cost))
    return plan.draft_length


def test_the_policy_knows_nothing_of_the_turns_of_others(arms):
    cost = StepCost(requests=3, tokens=9, context_tokens=30, draft_length=2, seconds=0.5)
    assert [step(arms, number, 6, 1, cost) for number in (0, 2)] == [2, 2]  # the first plan held for two steps
    arms.begin(4, 5, False)
    other = replace(cost, seconds=9.0)
    assert [step(arms, number, 15, 15, other) for number in (4, 5)] == [5, 5]
    arms.begin(6, None, False)  # without speculation: no plan is made
    arms.begin(17, None, True)
    assert step(arms, 17, 4, 1) == 2
    learnt = arms._learnt
    assert learnt.options is None
    assert learnt.planned == [(0, None), (2, cost), (4, cost)]
    assert [report.step for report in learnt.reports] == [0, 2, 4]
    assert vars(arms.count(18)) == {"steps": 5, "verified": 6 + 6 + 3 * 2, "accepted": 3}


def test_a_report_that_comes_after_the_turn_is_still_the_policys(arms):
    arms.plan(HostStats(0, ()))
    arms.begin(1, 1, False)
    arms.plan(HostStats(1, ()))
    for number in (0, 1):
        arms.observe(StepReport(number, 1, 3, 3, 2, 0))
    assert [report.step for report in arms._learnt.reports] == [0]
