"""The policy `adaptive`: caps of single requests by their own acceptance, held to plain references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec
from specplug.testing import PolicyContract
from specplug.testing.policy_harness import ENGINES
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.plan import HostStats, RequestStats, StepReport
from specplug.types.step import CostPoint, StepCost, StepPlan
from specplug_adaptive import plugin
from specplug_adaptive.acceptance import RequestAcceptance
from specplug_adaptive.policy import AdaptiveOptions, AdaptivePlanner, NoCaps, build, choose_draft_lengths


def spec() -> PolicySpec:
    registry = Registry()
    registry.add(plugin, Owner("adaptive", "specplug", "test"))
    return registry.get(PolicySpec, "adaptive")


class TestAdaptive(PolicyContract):
    spec = spec()
    options: Mapping[str, object] = MappingProxyType({"saturation": 8})
    engines = MappingProxyType({**ENGINES, "a drafter's rows": EngineCaps(8, ragged=Ragged.COSTS_FULL_GRAPH)})


# -- what is worthwhile ----------------------------------------------------------------------------------------------


def plain_lengths(rates: list[float], most: int, costs: list[CostPoint]) -> list[int]:
    """Try every number of the likeliest tokens."""
    tokens = sorted(
        ((rate ** (place + 1), row) for row, rate in enumerate(rates) for place in range(most)), reverse=True
    )
    gains = [
        sum(survival for survival, _ in tokens[:count]) - float(np.interp(count, *np.array(costs).T))
        for count in range(len(tokens) + 1)
    ]
    lengths = [0] * len(rates)
    for _, row in tokens[: gains.index(max(gains))]:
        lengths[row] += 1
    return [max(1, length) for length in lengths]


@given(
    st.lists(st.integers(1, 999), min_size=1, max_size=6, unique=True),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 36), st.integers(-2, 30)), max_size=4, unique_by=lambda point: point[0]),
)
def test_requests_draft_as_far_as_tokens_are_worth_their_cost(rates, most, points):
    levels = [rate / 1000 for rate in rates]
    costs = [CostPoint(0, 0.0), *(CostPoint(count, cost / 7.3) for count, cost in sorted(points))]
    lengths, _ = choose_draft_lengths(np.array(levels), most, costs)
    assert lengths.tolist() == plain_lengths(levels, most, costs)
    floor = np.full(len(levels), most)
    assert choose_draft_lengths(np.array(levels), most, costs, floor)[0].tolist() == [most] * len(levels)


def test_the_gain_is_what_is_saved_beyond_what_is_lost():
    lengths, gain = choose_draft_lengths(np.array([0.5, 0.9]), 2, [CostPoint(0, 0.0), CostPoint(4, 2.4)])
    assert lengths.tolist() == [1, 2]
    kept, lost, saved = 0.5 + 0.9 + 0.81, 0.25, 0.6
    assert gain == pytest.approx((saved - lost) / (2 + kept))


# -- what is learnt --------------------------------------------------------------------------------------------------


def stats(name: str, verified: int, accepted: int, rejected: int) -> RequestStats:
    return RequestStats(name, 100 + accepted, 50, None, verified, accepted, rejected)


def test_acceptance_is_of_decided_tokens_and_drawn_to_the_average():
    acceptance = RequestAcceptance()
    for step in range(1, 40):
        easy, hard = stats("easy", 8 * step, 8 * step, 0), stats("hard", 8 * step, 2 * step, step)
        rates, swept = acceptance.read([easy, hard])
    assert swept.tolist() == [True, False]
    assert rates[0] > 0.97
    assert 0.66 < rates[1] < 0.72  # two of three decided tokens, and a little of the average
    assert acceptance.average_rate == pytest.approx(10 / 11, abs=0.03)
    (new,), _ = acceptance.read([stats("new", 0, 0, 0)])
    assert new == pytest.approx(acceptance.average_rate)


def test_what_was_decided_long_ago_counts_less():
    acceptance = RequestAcceptance()
    for step in range(1, 60):
        acceptance.read([stats("a", 4 * step, 0, step)])
    (before,), _ = acceptance.read([stats("a", 240, 0, 60)])
    (after,), _ = acceptance.read([stats("a", 340, 100, 60)])
    assert before < 0.1
    assert after > 0.7


def test_steps_that_were_timed_decide_what_requests_may_draft():
    costs = [StepCost(8, 8 + drafted, 0, drafted // 8, 1.0 + 0.1 * drafted) for drafted in range(0, 65, 8)]
    for seconds, capped in ((1.0, 0), (0.0, 6)):
        found = planner(saturation=1)
        found.calibrate([StepCost(*cost[:4], seconds or cost[4]) for cost in map(astuple, costs)])
        for step in range(24):
            plan = found.plan(HostStats(step, rows(step)))
        assert len(plan.caps) == capped


# -- plans -----------------------------------------------------------------------------------------------------------


def planner(caps: EngineCaps | None = None, **options: Any) -> Planner:
    return build(PluginContext(caps or EngineCaps(8), options=AdaptiveOptions(**options)))


@pytest.mark.parametrize(
    ("caps", "kind"),
    [
        ({}, AdaptivePlanner),
        ({"ragged": Ragged.COSTS_FULL_GRAPH}, AdaptivePlanner),
        ({"ragged": Ragged.PADDED}, NoCaps),
        ({"verifies_budget": True}, NoCaps),
        ({"trees": True}, NoCaps),
    ],
)
def test_where_caps_save_nothing_the_plan_is_constant(caps, kind):
    found = planner(EngineCaps(8, **caps))
    assert type(found) is kind
    assert found.is_constant is (kind is NoCaps)


def test_a_constant_plan_is_fitted_to_the_engine():
    caps = EngineCaps(8, (0, 3, 7), Ragged.PADDED, DraftLengthChange.CAPTURED)
    assert planner(caps).plan(HostStats(0, ())).draft_length == 7


class Counting(tuple):
    """Requests that count how often their figures are read."""

    reads = 0

    def __iter__(self):
        Counting.reads += 1
        return super().__iter__()


def rows(step: int, easy: int = 2, hard: int = 6) -> Counting:
    """Return requests all of whose draft tokens are accepted, and others with none."""
    good = [stats(f"easy {number}", 8 * step, 8 * step, 0) for number in range(easy)]
    return Counting([*good, *(stats(f"hard {number}", 8 * step, 0, step) for number in range(hard))])


def test_a_name_that_is_used_again_is_another_request():
    acceptance = RequestAcceptance()
    acceptance.read([stats("a", 40, 30, 5)])
    rates, _ = acceptance.read([stats("a", 3, 2, 1)])  # 32 fewer
    assert 0.0 < rates[0] < 1.0


def test_requests_that_are_rejected_are_capped_and_others_are_not():
    found = planner(saturation=16)
    for step in range(12):
        plan = found.plan(HostStats(step, rows(step)))
    assert plan.draft_length == 8
    assert plan.caps == {f"hard {number}": 1 for number in range(6)}
    assert found.status()["capped_requests"] == 6
    assert found.plan(HostStats(12, rows(12))) is plan


def test_a_request_that_becomes_easy_doubles_its_drafts_at_every_reading():
    found, caps = planner(saturation=16), []
    for step in range(21):
        plan = found.plan(HostStats(step, rows(step)))
    for more in range(1, 4):
        easier = [
            each._replace(accepted=each.accepted + more) if each.request_id == "hard 0" else each for each in rows(20)
        ]
        plan = found.plan(HostStats(20 + 4 * more, tuple(easier)))
        caps.append(plan.draft_length_for("hard 0"))
    assert caps == [2, 4, 8]
    assert plan.draft_length_for("hard 1") == 1


def test_all_draft_less_where_all_are_capped():
    found = planner(saturation=16)
    for step in range(12):
        plan = found.plan(HostStats(step, rows(step, easy=0, hard=8)))
    assert plan == StepPlan(1)


def test_while_tokens_are_free_or_nothing_is_drafted_no_request_is_read():
    found = planner(saturation=1000)
    Counting.reads = 0
    for step in range(5):
        assert found.plan(HostStats(step, rows(step))) == StepPlan(8)
    found = planner(saturation=16)
    for step in range(5):
        found.plan(HostStats(step, rows(step), last_plan=StepPlan(0)))
    assert Counting.reads == 0
    found = planner(saturation=16)
    for step in range(7):
        found.plan(HostStats(step, rows(step)))
    assert Counting.reads == 2 * 2  # at steps 0 and 4; figures and names


def test_costs_of_another_policy_hold():
    found = planner(saturation=1)
    cheap = StepPlan(8, costs=(CostPoint(0, 0.0), CostPoint(64, 0.01)))
    dear = StepPlan(8, costs=(CostPoint(0, 0.0), CostPoint(64, 58.0)))
    for step in range(12):
        plan = found.plan(HostStats(step, rows(step), last_plan=cheap))
    assert not plan.caps
    for step in range(12, 24):
        plan = found.plan(HostStats(step, rows(step), last_plan=dear))
    assert plan.caps == {f"hard {number}": 1 for number in range(6)}


def test_what_is_kept_of_steps_under_costs_of_another_policy_is_bounded():
    found, other = planner(saturation=16), StepPlan(8, costs=(CostPoint(0, 0.0), CostPoint(64, 58.0)))
    for step in range(2000):
        found.plan(HostStats(step, rows(step), last_plan=other))
        found.observe(StepReport(step, 8, 8, 8, 64, 16, StepCost(8, 72, 0, 8, 0.01)))
    assert len(found._reports) <= 256
