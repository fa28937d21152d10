"""The peers: their rules against plain forms, and what they learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.judge import field_of
from benchmarks.simulate.modes import modes
from benchmarks.simulate.peers import PEERS, Tier, TiersPlanner
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.survival import Counts, SurvivalPlanner, SurvivalTrim
from specplug.interfaces import PluginContext
from specplug.types.plan import HostStats, RequestStats, TrimLimits
from specplug.types.step import Draft
from tests.benchmarks.simulate.tools import SURFACE, random_trajectories, run

MODES = modes(8)


def profile(mode: str = "cut") -> Profile:
    return Profile(SURFACE, MODES[mode], random_trajectories())


def stats(rows: int) -> HostStats:
    return HostStats(0, tuple(RequestStats(str(row), 10, 1000) for row in range(rows)))


def context(mode: str = "cut") -> PluginContext:
    return PluginContext(MODES[mode].caps)


@pytest.mark.parametrize(
    ("name", "mode"), [(policy.peer, mode) for mode in MODES for policy in field_of(MODES[mode]) if policy.peer]
)
def test_every_peer_serves_without_faults(name, mode):
    trajectories = random_trajectories(requests=40)
    found = run(trajectories, Policy(name, name, peer=name), mode, concurrency=10)
    assert found.faults == {}
    assert found.outputs.tolist() == trajectories.outputs.tolist()
    assert found.steps.draft_length.max() > 0


def test_a_table_has_the_best_constant_length_of_each_range():
    given = profile("padded")
    planner = PEERS["table"].build(given).build(context("padded"))
    for rows in (3, 6, 96):
        expected = max(given.mode.lengths, key=lambda length: given.acceptance[length] / given.step(rows, length))
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


class TestSurvival:
    def draft(self, lengths):
        draft = Draft.allocate(len(lengths), 8, sources=("own text",))
        for row, length in enumerate(lengths):
            draft.set_row(row, [0] * length, 0.9)
        return draft

    def test_confidences_are_counts_by_source_bucket_and_position(self):
        given = profile()
        counts = Counts(given, own_confidences=False)
        given.matches = np.array([2, 5], np.uint8)
        counts.rated(self.draft([3, 2]))
        counts.learn(np.array([3, 2]), np.array([2, 0]))  # row 0: yes, yes, no; row 1: no
        rated = counts.rated(self.draft([3, 2])).confidence
        assert rated[0, :4].tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0.0])
        assert rated[1, :3].tolist() == pytest.approx([1 / 3, 1 / 2, 0.0])
        assert counts.survival[0, :3].tolist() == pytest.approx([2 / 3, 4 / 9, 4 / 27])

    @given(st.integers(1, 40), st.integers(0, 300), st.integers(0, 1000))
    @settings(max_examples=40)
    def test_the_budget_has_the_best_ratio_on_the_profiled_curve(self, rows, prefill, seed):
        given = profile()
        counts = Counts(given, own_confidences=True)
        counts.survival = np.cumprod(np.random.default_rng(seed).uniform(0, 1, (rows, 8)), axis=1)
        given.prefill_tokens = prefill
        plan = SurvivalPlanner(context(), counts, given).plan(stats(rows))
        sizes, seconds = given.verification
        scores = np.sort(counts.survival.ravel())[::-1]

        def ratio(budget):
            total = rows + prefill + budget
            cost = (
                seconds[np.searchsorted(sizes, total)]
                if total <= 512
                else np.interp(total, sizes[sizes > 512], seconds[sizes > 512])
            )
            return (rows + scores[:budget].sum()) / (given.drafting(rows) + cost)

        best = max(map(ratio, range(scores.size + 1)))
        assert ratio(plan.token_budget) == pytest.approx(best) or plan.token_budget == 1

    def test_the_likeliest_tokens_are_kept(self):
        given = profile()
        counts = Counts(given, own_confidences=True)
        given.matches = np.zeros(2, np.uint8)
        draft = self.draft([3, 0])
        draft.set_row(1, [0, 0], 0.5)
        kept = SurvivalTrim(counts).trim(draft, TrimLimits.build(4))
        assert kept.lengths.tolist() == [3, 1]

    def test_a_gate_drafts_equally_long_below_its_knee_only(self):
        planner = PEERS["gate"].build(profile()).build(context())
        assert planner.plan(stats(2)).token_budget is None
        assert planner.plan(stats(2)).draft_length == 8
        assert planner.plan(stats(400)).token_budget is not None
