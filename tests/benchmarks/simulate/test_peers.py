"""The peers: their rules against plain forms, and what they learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.modes import Layout, modes
from benchmarks.simulate.peers import PEERS, PeerSetup
from benchmarks.simulate.peers.nightjar import NightjarPlanner
from benchmarks.simulate.peers.survival import Counts, SurvivalPlanner, SurvivalTrim
from benchmarks.simulate.peers.tiers import Tier, TiersPlanner
from benchmarks.simulate.profile import Profile
from specplug.interfaces import PluginContext
from specplug.types.draft import Draft
from specplug.types.plan import HostStats, RequestStats, StepCost, StepReport
from specplug.types.trim import TrimLimits
from tests.benchmarks.simulate.tools import SURFACE, random_trajectories, run

MODES = modes(8)


def setup(mode: str = "cut") -> PeerSetup:
    return PeerSetup(Profile(SURFACE, MODES[mode], random_trajectories()))


def stats(rows: int) -> HostStats:
    return HostStats(0, tuple(RequestStats(str(row), 10, 1000) for row in range(rows)))


def context(mode: str = "cut") -> PluginContext:
    return PluginContext(MODES[mode].caps)


@pytest.mark.parametrize(
    ("name", "mode"), [(n, m) for n, m in itertools.product(PEERS, MODES) if PEERS[n].applies(MODES[m])]
)
def test_every_peer_serves_without_faults(name, mode):
    trajectories = random_trajectories(requests=40)
    found = run(trajectories, Policy(name, name, peer=name), mode, concurrency=10)
    assert found.faults == {}
    assert found.outputs.tolist() == trajectories.outputs.tolist()
    assert found.steps.draft_length.max() > 0


def test_peers_that_choose_tokens_need_drafts_that_can_be_cut():
    assert [name for name in PEERS if not PEERS[name].applies(MODES["padded"])] == ["survival", "gate"]


def test_a_table_has_the_best_constant_length_of_each_range():
    planner = PEERS["table"].build(setup("padded")).build(context("padded"))
    profile = setup("padded").profile
    for rows in (3, 6, 96):
        expected = max(profile.mode.lengths, key=lambda length: profile.acceptance[length] / profile.step(rows, length))
        assert planner.plan(stats(rows)).draft_length == expected
    assert planner.plan(stats(512)).draft_length <= planner.plan(stats(1)).draft_length


class TestTiers:
    def test_the_last_tier_never_drafts(self):
        planner = TiersPlanner(context("padded"))
        assert planner.plan(stats(64)).draft_length == planner.plan(stats(512)).draft_length == 0
        assert planner.plan(stats(1)).draft_length == 3

    @pytest.mark.parametrize(("accepted", "expected"), [(6.5, 7), (0.0, 1), (3.0, 5)])
    def test_the_length_follows_the_accepted_tokens(self, accepted, expected):
        tier = Tier((1, 3, 5, 7), down=-0.25)
        for _ in range(100):
            tier.update(min(accepted, tier.length))
        assert tier.length == expected

    def test_nothing_changes_before_the_warm_up_ends(self):
        tier = Tier((1, 3, 5, 7))
        for _ in range(14):
            tier.update(0.0)
            assert tier.length == 3
        tier.update(0.0)
        assert tier.length == 1

    def test_a_tier_that_drafts_nothing_probes(self):
        tier = Tier((0, 1))
        lengths = []
        for _ in range(40):
            tier.update(0.0)
            lengths.append(tier.length)
        assert {*lengths} == {0, 1}


class TestNightjar:
    def test_the_fastest_length_is_held_most(self):
        planner, chosen = NightjarPlanner(context("padded"), (0, 1, 3, 7), restart=0.0, seed=0), []
        for step in range(3000):
            length = planner.plan(stats(4)).draft_length
            chosen.append(length)
            seconds = 0.01 * (1.0 if length == 3 else 1.5)
            cost = StepCost(4, 4 * (length + 1), 100, length, seconds)
            planner.observe(StepReport.build(step, length, 4, [(length, 0)] * 4, cost))
        assert {*chosen} == {0, 1, 3, 7}
        assert np.mean(np.array(chosen[1000:]) == 3) > 0.7

    def test_steps_with_prompt_tokens_teach_nothing(self):
        planner = NightjarPlanner(context("padded"), (0, 1), restart=0.0, seed=0)
        planner.plan(stats(4))
        planner.observe(StepReport.build(0, 1, 4, [(1, 0)] * 4, StepCost(4, 500, 100, 1, 9.0)))
        planner.observe(StepReport.build(0, 1, 4, [(1, 0)] * 4, None))
        assert planner._bins[3].losses == {}


class TestSurvival:
    def draft(self, lengths):
        draft = Draft.allocate(len(lengths), 8, sources=("own text",))
        for row, length in enumerate(lengths):
            draft.set_row(row, [0] * length, 0.9)
        return draft

    def test_confidences_are_counts_by_source_bucket_and_position(self):
        given = setup()
        counts = Counts(given, own_confidences=False)
        given.features.matches = np.array([2, 5], np.uint8)
        counts.rated(self.draft([3, 2]))
        counts.learn(np.array([3, 2]), np.array([2, 0]))  # row 0: yes, yes, no; row 1: no
        rated = counts.rated(self.draft([3, 2])).confidence
        assert rated[0, :4].tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0.0])
        assert rated[1, :3].tolist() == pytest.approx([1 / 3, 1 / 2, 0.0])
        assert counts.survival[0, :3].tolist() == pytest.approx([2 / 3, 4 / 9, 4 / 27])

    @given(st.integers(1, 40), st.integers(0, 300), st.integers(0, 1000))
    @settings(max_examples=40)
    def test_the_budget_has_the_best_ratio_on_the_profiled_curve(self, rows, prefill, seed):
        given = setup()
        counts = Counts(given, own_confidences=True)
        counts.survival = np.cumprod(np.random.default_rng(seed).uniform(0, 1, (rows, 8)), axis=1)
        planner = SurvivalPlanner(context(), counts, given.profile)
        plan = planner.plan(HostStats(0, stats(rows).requests, 0, prefill))
        sizes, seconds = given.profile.verification
        scores = np.sort(counts.survival.ravel())[::-1]

        def ratio(budget):
            total = rows + prefill + budget
            cost = (
                seconds[np.searchsorted(sizes, total)]
                if total <= 512
                else np.interp(total, sizes[sizes > 512], seconds[sizes > 512])
            )
            return (rows + scores[:budget].sum()) / (given.profile.drafting(rows) + cost)

        best = max(map(ratio, range(scores.size + 1)))
        assert ratio(plan.token_budget) == pytest.approx(best) or plan.token_budget == 1

    def test_the_likeliest_tokens_are_kept(self):
        given = setup()
        counts = Counts(given, own_confidences=True)
        given.features.matches = np.zeros(2, np.uint8)
        draft = self.draft([3, 0])
        draft.set_row(1, [0, 0], 0.5)
        kept = SurvivalTrim(counts).trim(draft, TrimLimits.build(4, torch.ones(2, dtype=torch.bool)))
        assert kept.lengths.tolist() == [3, 1]

    def test_a_gate_drafts_equally_long_below_its_knee_only(self):
        planner = PEERS["gate"].build(setup()).build(context())
        assert planner.plan(stats(2)).token_budget is None
        assert planner.plan(stats(2)).draft_length == 8
        assert planner.plan(stats(400)).token_budget is not None


def test_only_peers_that_decide_in_the_worker_have_no_lag():
    assert [name for name, peer in PEERS.items() if peer.decides_in_worker] == ["survival", "gate"]
    assert {mode.layout for mode in MODES.values()} == {*Layout}
