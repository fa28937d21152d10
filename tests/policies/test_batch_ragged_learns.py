"""The policy `batch` where draft tokens have costs of their own: it finds what pays on unknown costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from specplug_batch.gains import SpeedUps

from specplug.interfaces import PluginContext
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.plan import HostStats, StepCost, StepPlan, StepReport
from specplug_batch.options import BatchOptions
from specplug_batch.ragged import RaggedPlanner
from tests.policies.stream_server import Fixed, StreamServer

GAMMA = 16
CAPS = EngineCaps(GAMMA, ragged=Ragged.NATIVE)
KINDS = {"easy": (0.97, 0.95, 0.9), "mixed": (0.97, 0.8, 0.35), "hard": (0.5, 0.35, 0.2), "hopeless": (0.004,)}
"""Confidence of every token of a row's draft; each row is of one of these kinds, and its tokens are as good."""

SURFACES = {
    "dense": lambda requests, drafts, length: 5 + 0.5 * (length > 0) + 2.5 * ((requests + drafts) / 700) ** 1.5,
    "experts": lambda requests, drafts, length: 4 + 9 * (1 - (15 / 16) ** (requests + drafts)) + 0.01 * drafts,
    "arithmetic": lambda requests, drafts, length: 1 + 0.1 * (requests + drafts) + 0.2 * (length > 0),
}


def kept(confidences: np.ndarray, plan: StepPlan) -> np.ndarray:
    """Return [B], how many tokens each row verifies under a plan, one by one in descending survival."""
    survival = confidences[:, None] ** np.arange(1, plan.draft_length + 1)
    counts, gain = np.zeros(len(confidences), int), 0.0
    for number, place in enumerate(np.argsort(-survival, axis=None, kind="stable")[: plan.budget_of(survival.size)]):
        row, column = divmod(place, plan.draft_length)
        if any(survival[row, column] < price.survival and number >= price.after for price in plan.prices):
            break
        counts[row] += 1
        gain += survival[row, column] - max([x.survival for x in plan.prices if number >= x.after], default=0.0)
    return counts * (gain >= plan.entry)


ALL = StepPlan(GAMMA)


class Server(StreamServer):
    """An engine with ragged rows.

    Args:
        drafting: milliseconds of a step that drafts, if the engine tells.
    """

    def __init__(self, surface, planner=None, seed=1, noise=0.03, drafting=None):
        super().__init__(planner or RaggedPlanner(PluginContext(CAPS, options=BatchOptions())), seed, noise)
        self._surface, self._drafting, self._kinds = SURFACES[surface], drafting, 0

    def serve(self, traffic, requests, tokens=0, *, steps=0):
        """Emit about so many tokens, or take so many steps.

        Returns:
            The tokens per second, and how many are rejected per emitted one.
        """
        seconds = emitted = wasted = taken = 0
        while emitted < tokens or taken < steps:
            plan, confidences = self.next_plan, np.take(KINDS[traffic], self._kinds + np.arange(requests), mode="wrap")
            self._kinds += requests  # all kinds are equally frequent
            could = self.could_draft(requests)
            counts = kept(confidences, plan) * could
            hits = self.rng.random((requests, GAMMA)) < confidences[:, None]
            accepted = np.minimum(hits.cumprod(1).sum(1), counts)
            expected = (confidences * (1 - confidences**counts) / (1 - confidences)).sum()  # less noisy
            spent = self._surface(requests, counts.sum(), plan.draft_length) * 1e-3
            seconds, emitted, taken = seconds + spent, emitted + requests + expected, taken + 1
            wasted += counts.sum() - expected
            rows = np.flatnonzero(could) if plan.draft_length else np.arange(requests)
            fates = [(int(counts[row]), int(accepted[row])) for row in rows]
            drafting = None if self._drafting is None else 1e-3 * self._drafting * (plan.draft_length > 0)
            verified = requests + int(counts.sum())
            self.end_step(requests, verified, spent, accepted + 1, len(rows), fates, drafting_seconds=drafting)
        return emitted / seconds, wasted / emitted


def best_constant(surface, traffic, requests):
    """Return the best rate of constant draft lengths and budgets, and that of no drafts."""
    budgets = [requests // 2, requests, 2 * requests, 4 * requests, 8 * requests]
    plans = [StepPlan(length) for length in (0, 1, 3, 7, GAMMA)] + [StepPlan(GAMMA, budget) for budget in budgets]
    rates = [Server(surface, Fixed(plan)).serve(traffic, requests, 100 * requests)[0] for plan in plans]
    return max(rates), rates[0]


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("traffic", KINDS)
@pytest.mark.parametrize("requests", [4, 64])
def test_it_comes_close_to_the_best_constant_plan_untold(surface, traffic, requests):
    server = Server(surface)
    server.serve(traffic, requests, 500 * requests)  # learning costs a little
    found = server.serve(traffic, requests, 1000 * requests)[0]
    best, none = best_constant(surface, traffic, requests)
    assert found > 0.99 * none
    if best > 1.08 * none:  # less is not worth the risk
        assert found > 0.96 * best


def test_where_any_draft_tokens_make_a_step_longer_only_likely_drafts_are_verified_and_at_once(monkeypatch):
    """One request on a CPU: drafting stays on while it finds nothing, as that costs nothing there."""
    vectors = {"vectors": lambda requests, drafts, length: 60 + 30 * (drafts > 0) + 3 * drafts}
    monkeypatch.setitem(SURFACES, "vectors", vectors["vectors"])
    server, plain, longest = (Server("vectors", planner) for planner in (None, *map(Fixed, (StepPlan(0), ALL))))
    rates = [one.serve("hard", 1, 100)[0] for one in (server, plain)]
    assert rates[0] > 0.95 * rates[1]
    rates = [one.serve("hard", 1, 3000)[0] for one in (server, plain)]
    assert rates[0] > 0.995 * rates[1]
    server.serve("hopeless", 1, 3000)
    rates = [one.serve("easy", 1, 200)[0] for one in (server, longest)]
    assert rates[0] > 0.95 * rates[1]


@pytest.mark.parametrize("drafting", [0.2, 1.8])
@pytest.mark.parametrize("seed", range(2))
def test_where_step_times_scatter_drafts_that_lost_at_first_are_still_verified_where_they_are_sure(
    seed, drafting, monkeypatch
):
    """One request after another on a shared CPU: exploring costs the first some per cent, later ones copy at times."""

    def surface(requests, drafts, length):
        return 60 + 40 * (drafts > 0) + 3 * drafts + drafting * (length > 0)

    monkeypatch.setitem(SURFACES, "vectors", surface)
    monkeypatch.setitem(KINDS, "copies", (0.97, *[0.004] * 7))
    sure, plain = Fixed(StepPlan(GAMMA, entry=1.0)), Fixed(StepPlan(0))
    server = Server("vectors", seed=seed, noise=0.13, drafting=drafting)
    server.serve("hopeless", 1, 300)
    assert server.serve("copies", 1, steps=300)[0] > 0.9 * Server("vectors", sure).serve("copies", 1, steps=300)[0]
    server.serve("hopeless", 1, 2500)  # what drafts gained is remembered for some hundred steps of one row
    rates = [one.serve("hopeless", 1, 2000)[0] for one in (server, Server("vectors", plain))]
    assert rates[0] > 0.99 * rates[1]


def test_hopeless_drafts_are_hardly_verified():
    server, plain = Server("dense"), Server("dense", Fixed(StepPlan(0)))
    server.serve("hopeless", 8, 200 * 8)
    rate, wasted = server.serve("hopeless", 8, 3000 * 8)
    assert wasted <= 0.005
    assert rate > 0.99 * plain.serve("hopeless", 8, 3000 * 8)[0]


def test_drafts_that_become_good_are_drafted_again():
    server, full = Server("dense"), Server("dense", Fixed(StepPlan(GAMMA)))
    server.serve("hopeless", 8, 1000 * 8)
    server.serve("easy", 8, 3000 * 8)
    assert server.serve("easy", 8, 1000 * 8)[0] > 0.97 * full.serve("easy", 8, 1000 * 8)[0]


@pytest.mark.parametrize(("requests", "idle"), [(1, 100), (1, 1000), (8, 5000), (64, 300)])
def test_drafting_is_back_soon_after_it_was_off(requests, idle):
    server = Server("dense")
    server.serve("hopeless", requests, steps=idle)
    server.serve("easy", requests, steps=300)
    always = Server("dense", Fixed(StepPlan(GAMMA))).serve("easy", requests, steps=300)[0]
    assert server.serve("easy", requests, steps=300)[0] > 0.95 * always


def test_it_follows_the_load_and_comes_back():
    server = Server("dense")
    for requests in (4, 64, 4):
        rate = server.serve("mixed", requests, 1500 * requests)[0]
        assert rate > 0.95 * best_constant("dense", "mixed", requests)[0]


def test_a_token_budget_holds():
    planner = RaggedPlanner(PluginContext(CAPS, options=BatchOptions(token_budget=9)))
    plans = [planner.plan(HostStats(step, range(4 + step % 2))) for step in range(300)]
    assert all(plan.token_budget == 9 for plan in plans)


def test_what_the_worker_verified_counts_where_the_scheduler_knows_only_placeholders():
    cut = PluginContext(replace(CAPS, verifies_budget=True), options=BatchOptions())
    planners = [RaggedPlanner(cut) for _ in range(2)]
    for step in range(100):
        cost = StepCost(8, 8 + 24, 0, 15, 0.01)
        for planner, verified in zip(planners, (3, 15), strict=True):
            planner.observe(StepReport.build(step, 15, 8, [(verified, 2)] * 8, cost))
    assert planners[0]._gains.speed_up(8) == planners[1]._gains.speed_up(8)


class TestSpeedUps:
    def test_a_batch_size_that_was_not_seen_is_taken_for_the_nearest(self):
        gains = SpeedUps()
        assert gains.speed_up(8) == 1.0
        for _ in range(200):
            gains.observe(8, 3.0, 1.2)
            gains.observe(64, 2.0, 1.25)
        assert gains.speed_up(9) == pytest.approx(2.5, rel=0.02)
        assert gains.speed_up(200) == gains.speed_up(64) == pytest.approx(1.6, rel=0.02)
        assert gains.is_known(8)
        assert not gains.is_known(200)

    def test_what_was_forgotten_is_a_first_guess(self):
        gains = SpeedUps()
        for _ in range(200):
            gains.observe(8, 3.0, 1.2)
        gains.forget()
        assert gains.speed_up(8) == pytest.approx(2.5, rel=0.02)
        assert not gains.is_known(8)
        for _ in range(16):
            gains.observe(8, 1.0, 1.0)
        assert gains.speed_up(8) < 1.6


def test_it_states_what_it_plans_and_why():
    server = Server("dense")
    assert server.planner.status() == {"why": "nothing was planned yet"}
    server.serve("easy", 8, 4000 * 8)
    found = server.planner.status()
    assert (found["draft_length"], found["requests"], found["costs"]) == (16, 8, "measured")
    assert found["why"].startswith("at 8 requests decoding with drafts emits ")
    assert found["speed_up"] > 5
    assert found["cost_error"] < 0.1
    server.serve("hopeless", 8, 4000 * 8)
    assert server.planner.status()["why"].startswith("off: at 8 requests")
