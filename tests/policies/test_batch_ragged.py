"""The policy `batch` where each draft token has a cost of its own: its curve, and its worth on simulated steps."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.interfaces import PluginContext
from specplug.steps.plan_stage import checked_costs
from specplug.steps.trim import best_count
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import StepCost, StepPlan
from specplug_batch.options import BatchOptions
from specplug_batch.pace import DECIDE_EVERY, PLAIN_STEPS, TRIAL_STEPS
from specplug_batch.ragged import RaggedPlanner

LONGEST = 7
CAPS = EngineCaps(LONGEST, ragged=Ragged.NATIVE)

CPU = {1: 1.0, 2: 1.82, 3: 2.26, 4: 1.6, 6: 1.83, 8: 1.92}
"""Relative seconds of a step by tokens, on a CPU where two and three tokens cost more than four."""


def flat(tokens):
    return 1.0


def rising(tokens):
    return 1.0 + 0.15 * tokens


def cpu(tokens):
    return float(np.interp(tokens, list(CPU), list(CPU.values())) + 0.1 * max(0, tokens - 8))


SURFACES = {"flat": flat, "rising": rising, "cpu": cpu}


def planner(surface=None, batches=(1, 2, 4, 8), drafting=0.0, **options):
    """Return the plan half, started from timed steps of a surface, seconds by tokens, beside those of drafting."""
    built = RaggedPlanner(PluginContext(CAPS, options=BatchOptions(**options)))
    if surface is not None:
        steps = [
            StepCost(
                rows, rows + drafted, 0, LONGEST if drafted else 0, surface(rows + drafted) + drafting * (drafted > 0)
            )
            for rows in batches
            for drafted in range(rows * LONGEST + 1)
        ]
        built.calibrate(steps)
    return built


def plan_for(built, requests, step=0):
    return built.plan(HostStats(step, range(requests)))


def cost_of(plan, draft_tokens):
    points = np.array(plan.costs)
    return float(np.interp(draft_tokens, points[:, 0], points[:, 1]))


@pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES)
@pytest.mark.parametrize("requests", [1, 4])
def test_the_curve_is_the_added_time_at_the_rate_of_plain_decoding_at_first(surface, requests):
    plan = plan_for(planner(surface), requests)
    plain = surface(requests)
    for drafted in range(requests * LONGEST + 1):
        added = (surface(requests + drafted) / plain - 1.0) * requests
        assert cost_of(plan, drafted) == pytest.approx(added, abs=0.05 * requests)


def reported(step, requests, drafted, accepted, seconds, draft_length=LONGEST):
    cost = StepCost(requests, requests + drafted, 0, draft_length, seconds)
    return StepReport(step, draft_length, requests, requests, drafted, accepted, cost)


def test_a_server_that_emits_faster_charges_more_for_the_same_time():
    built = planner(rising)
    before = cost_of(plan_for(built, 1), LONGEST)
    for step in range(300):
        built.observe(reported(step, 1, LONGEST, 5, rising(1 + LONGEST)))
        plan = plan_for(built, 1, step + 1)
    speed_up = built.status()["speed_up"]
    assert speed_up == pytest.approx(6 * rising(1) / rising(1 + LONGEST), rel=0.05)
    assert cost_of(plan, LONGEST) == pytest.approx(before * speed_up, rel=0.05)


class Server:
    """Simulated steps of requests whose drafts survive as their confidences say."""

    def __init__(self, surface, built, seed=0, sure=0.2, drafting=0.0, noise=0.03):
        self._surface, self._built, self._drafting = surface, built, drafting
        self._noise, self._scatter = np.random.default_rng(seed), noise
        self._rng, self._sure, self._step, self._rest = np.random.default_rng(seed), sure, 0, 0
        self._plan = StepPlan(LONGEST)
        self.seconds, self.tokens, self.drafted, self.lengths = 0.0, 0, 0, []

    def serve(self, requests, steps, threshold=None):
        for _ in range(steps):
            if threshold is None and self._rest <= 0:
                self._plan = plan_for(self._built, requests, self._step)
                self._rest = self._plan.num_steps if not self._plan.draft_length else 0
            self._rest -= 1
            self._take(requests, threshold)
            self._step += 1
        return self.tokens / self.seconds

    def _take(self, requests, threshold):
        rate = np.where(self._rng.random(requests) < self._sure, 0.95, 0.3)
        survival = rate[:, None] ** np.arange(1, LONGEST + 1)
        run = (self._rng.random((requests, LONGEST)) < rate[:, None]).cumprod(1).sum(1)
        length = self._plan.draft_length
        if threshold is not None:
            keep = survival >= threshold
        else:
            count = best_count(survival, self._plan.costs) if length else 0
            order = np.argsort(-survival, axis=None, kind="stable")
            keep = np.zeros(survival.size, bool)
            keep[order[:count]] = True
            keep = keep.reshape(survival.shape)
        kept = keep.sum(1)
        accepted, drafted = int(np.minimum(run, kept).sum()), int(kept.sum())
        seconds = self._surface(requests + drafted) + self._drafting * (length > 0)
        self.seconds += seconds
        self.tokens += requests + accepted
        self.drafted += drafted
        self.lengths.append(length)
        if threshold is None and self._rest <= 0:
            noisy = seconds * float(np.exp(self._noise.normal(0, self._scatter)))
            self._built.observe(reported(self._step, requests, drafted, accepted, noisy, length))


@pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES)
@pytest.mark.parametrize("requests", [1, 8])
@pytest.mark.parametrize("is_timed", [True, False])
def test_it_beats_every_constant_threshold(surface, requests, is_timed):
    steps = 6000 // requests
    constants = [Server(surface, None).serve(requests, steps, threshold) for threshold in (0.01, 0.1, 0.3, 0.6, 2.0)]
    built = planner(surface if is_timed else None)
    if not is_timed:
        Server(surface, built, seed=1).serve(requests, 300)
    assert Server(surface, built).serve(requests, steps) > (0.99 if is_timed else 0.96) * max(constants)


def test_timed_steps_leave_nothing_to_be_tried():
    timed, untimed = planner(cpu), planner()
    Server(cpu, timed).serve(1, 50)
    Server(cpu, untimed).serve(1, 50)
    assert not timed._trials._counts
    assert set(untimed._trials._counts.values()) == {TRIAL_STEPS}


def test_drafts_that_cost_more_than_they_gain_are_not_made_and_come_back():
    built = planner(flat, drafting=0.6)
    poor = Server(flat, built, sure=0.0, drafting=0.6)
    poor.serve(8, 600)
    assert np.mean(poor.lengths[300:]) < 0.25 * LONGEST
    assert built.status()["why"].startswith("off: ") or built.status()["draft_length"]
    good = Server(flat, built, sure=1.0, drafting=0.6)
    good._step = poor._step
    good.serve(8, 1500)
    assert set(good.lengths[-100:]) == {LONGEST}


def test_costs_count_more_while_drafts_yield_less_than_they_cost():
    """Confidences promise more than the costs, and one token in twenty is accepted; later they keep their promise."""
    built = planner(rising)
    plain = cost_of(plan_for(built, 8), 8)
    costs = []
    for step in range(600):
        built.observe(reported(step, 8, 8, 6 if step >= 300 else step % 20 == 0, rising(16)))
        costs.append(cost_of(plan, 8) if (plan := plan_for(built, 8, step + 1)).draft_length else None)
    doubted = [cost for cost in costs[50:300] if cost is not None]
    assert doubted
    assert min(doubted) > 1.5 * plain
    assert costs[-1] < 1.5 * plain, "at a higher rate of the server, but not doubted any more"


def test_cheap_drafts_are_made_although_nothing_is_verified():
    built = planner(lambda tokens: tokens)
    server = Server(lambda tokens: tokens, built, sure=0.0, noise=0.01)
    server.serve(8, 300)
    assert set(server.lengths) == {LONGEST}
    assert server.drafted == 0, "no token is worth as much as a row of its own"


def test_a_decision_holds_for_some_steps_of_a_like_batch():
    built = planner(rising)
    plans = [plan_for(built, 20, step) for step in range(2000, 2000 + DECIDE_EVERY)]
    assert all(plan is plans[0] for plan in plans)
    assert plan_for(built, 21, 2100) is plans[0]
    newer = plan_for(built, 23, 2100)
    assert newer is not plans[0]
    assert plan_for(built, 23, 2100 + DECIDE_EVERY) is not newer


def test_the_settings_and_the_state_are_shown():
    built = planner(rising, token_budget=5)
    assert built.status() == {"why": "nothing was planned yet"}
    assert plan_for(built, 2).token_budget == 5
    found = built.status()
    assert (found["requests"], found["draft_length"], found["basis"]) == (2, LONGEST, "measured at start")
    assert found["costs"][0] == [0, 0.0]


def test_padding_that_an_engine_runs_besides_counts():
    built = planner(rising)
    exact = cost_of(plan_for(built, 4), 4)
    for step in range(40):
        cost = StepCost(4, 4 + 8, 0, LONGEST, rising(12))
        built.observe(StepReport(step, LONGEST, 4, 4, 4, 2, cost))
        plan = plan_for(built, 4, step + 1)
    assert cost_of(plan, 4) > 1.6 * exact


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_rest_is_short_while_costs_are_only_assumed(is_timed, monkeypatch):
    built = planner(rising) if is_timed else RaggedPlanner(PluginContext(EngineCaps(LONGEST, ragged=Ragged.NATIVE)))
    monkeypatch.setattr(built._drafting, "plan_rest", lambda requests, cost: 1649)
    monkeypatch.setattr(built._costs, "knows", lambda drafts: True)
    for _ in range(2 * TRIAL_STEPS):
        built._trials.take_length(4, (LONGEST, 0))  # it has tried them
    assert plan_for(built, 4).num_steps == (1649 if is_timed else PLAIN_STEPS)


def share_drafted(built, batches, accepted, steps, first=0):
    """Return the share of steps that draft, where drafts take a tenth of a step and yield so much per row and step."""
    holds_until = drafted = planned = 0
    for step in range(first, first + steps):
        requests = batches[step // 10 % len(batches)]
        holds = step < holds_until and requests == planned
        if not holds:
            plan, planned = plan_for(built, requests, step), requests
            holds_until = 0 if plan.draft_length else step + plan.num_steps
            seconds = 1.1 if plan.draft_length else 1.0
            cost = StepCost(requests, requests, 0, plan.draft_length, seconds)
            gained = accepted * requests * (plan.draft_length > 0)
            built.observe(StepReport(step, plan.draft_length, requests, requests, gained, gained, cost))
        drafted += plan.draft_length > 0
    return drafted / steps


@pytest.mark.parametrize("batches", [(1,), (4,), (1, 2), (8, 9), (16,)])
def test_trials_of_a_costly_drafter_are_rare_at_any_batch_size(batches):
    built = planner(flat)
    share_drafted(built, batches, 0, 500)
    assert share_drafted(built, batches, 0, 2000, 500) < 0.12, "1 % of the time, if drafts take 10 %"
    share_drafted(built, batches, 1, 200, 2500)
    assert share_drafted(built, batches, 1, 500, 2700) > 0.9


def test_the_curve_of_the_largest_batches_is_a_valid_one():
    built = RaggedPlanner(PluginContext(EngineCaps(63, ragged=Ragged.NATIVE), options=BatchOptions()))
    built.calibrate([StepCost(1, 1, 0, 0, 1.0), StepCost(1, 8, 0, 7, 1.1)])
    assert checked_costs(plan_for(built, 4096).costs)
