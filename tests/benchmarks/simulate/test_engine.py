"""The simulated engine: every request emits its recorded output, and every step is charged for what it verifies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.engine import Limits
from benchmarks.simulate.modes import CAPTURED_TOKENS, modes
from benchmarks.simulate.recording import record
from benchmarks.simulate.surface import Regime
from benchmarks.simulate.traffic import Clock, Disturbance, concurrency, shuffled
from specplug.tools.replay.engine import ReplayEngine, Setup
from specplug.types.step import StepPlan
from tests.benchmarks.simulate.tools import Planted, Recorder, fixed, planted, random_trajectories, run
from tests.tools.replay.tools import ITEMS, VOCAB, in_turn

NONE = Policy("none", "none")
BATCH = Policy("batch", "batch")
MODES = ("padded", "ragged", "cut")


@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(MODES),
    lag=st.integers(0, 2),
    most=st.integers(1, 16),
    policy=st.sampled_from([NONE, fixed(1), fixed(3), fixed(8), fixed(8, token_budget=5), BATCH]),
)
@settings(max_examples=60)
def test_every_request_emits_its_output_and_nothing_else(seed, mode, lag, most, policy):
    trajectories = random_trajectories(seed)
    found = run(trajectories, policy, replace(modes(8)[mode], lag=lag), concurrency=most)
    assert found.faults == {}
    assert found.outputs.tolist() == trajectories.outputs.tolist()
    assert np.all(found.started < found.finished)
    steps = found.steps
    assert steps.emitted.sum() == (trajectories.outputs - 1).sum()
    ended_inside = steps.accepted.sum() + steps.rows.sum() - steps.emitted.sum()  # drafts accepted up to the end
    assert 0 <= ended_inside <= trajectories.outputs.size
    assert np.all(steps.accepted <= steps.verified)
    assert np.all(steps.rows <= most)
    assert np.all(np.diff(steps.ended) > 0)


@given(ITEMS, st.integers(0, 6), st.integers(1, 3))
@settings(max_examples=30)
def test_steps_are_counted_exactly_as_in_a_replay(items, gamma, batch):
    setup = Setup("ngram-reference", "fixed", 6, {"ngram-reference": {"min_n": 1}})
    trajectories = record(items, setup, in_flight=batch, vocab_size=VOCAB)
    found = run(trajectories, fixed(gamma), replace(modes(6)["ragged"], lag=0), concurrency=batch)
    engine = ReplayEngine(replace(setup, gamma=gamma), max_length=64, vocab_size=VOCAB, slots=batch)
    expected = in_turn(engine, items, batch)
    steps = found.steps
    assert steps.rows.sum() == expected.steps
    assert steps.verified.sum() == expected.verified
    assert steps.accepted.sum() == expected.accepted
    assert steps.emitted.sum() == expected.emitted
    if batch == 1:
        decoding = steps.rows > 0
        rows = zip(steps.verified[decoding], steps.accepted[decoding], steps.emitted[decoding], strict=True)
        assert sorted(map(tuple, rows)) == sorted(expected.histogram.elements())


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_padded_rows_are_charged_for_the_draft_length(gamma):
    found = run(random_trajectories(), fixed(gamma), "padded").steps
    assert found.verified.tolist() == (found.rows * found.draft_length).tolist()
    assert {*found.draft_length[2:].tolist()} == {gamma}


def test_where_drafts_are_cut_the_budget_is_charged_even_if_drafts_are_shorter():
    surface = Recorder()
    found = run(random_trajectories(), fixed(8, token_budget=5), "cut", surface=surface).steps
    planned = found.draft_length > 0
    assert np.all(found.verified[planned] == np.minimum(5, found.rows * found.draft_length)[planned])
    regimes = {it.regime for it in surface.work if it.draft_length and it.rows > 1 and not it.prefill_tokens}
    assert regimes <= {Regime.MIXED, Regime.UNIFORM}


def test_ragged_rows_are_charged_for_their_own_tokens_in_pieces():
    trajectories, surface = random_trajectories(), Recorder()
    found = run(trajectories, fixed(8), "ragged", surface=surface, concurrency=1).steps
    assert found.verified.sum() < found.rows.sum() * 8
    assert {work.regime for work in surface.work if not work.prefill_tokens} == {Regime.UNIFORM}  # one row is uniform
    surface = Recorder()
    run(trajectories, fixed(8), "ragged", surface=surface, concurrency=6)
    assert Regime.PIECEWISE in {work.regime for work in surface.work if not work.prefill_tokens}


def test_steps_are_padded_to_captured_sizes_and_run_eager_beyond():
    surface = Recorder()
    trajectories = random_trajectories(requests=150, longest=20)
    run(trajectories, fixed(8), "padded", surface=surface, concurrency=100)
    decoding = [work for work in surface.work if work.rows and not work.prefill_tokens]
    assert {work.regime for work in decoding} == {Regime.UNIFORM, Regime.EAGER}
    for work in decoding:
        assert (work.tokens in CAPTURED_TOKENS) is (work.regime is Regime.UNIFORM)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_plan_shapes_the_drafts_of_the_step_that_is_lag_steps_later(mode, lag):
    planner = Planted(lambda stats: StepPlan((0, 1, 2, 3, 5)[stats.step % 5]))
    with planted(planner) as policy:
        found = run(random_trajectories(), policy, replace(modes(8)[mode], lag=lag))
    planned = [(0, 1, 2, 3, 5)[step % 5] for step in range(found.steps.ended.size)]
    assert found.steps.draft_length.tolist() == ([0] * lag + planned)[: len(planned)]
    reported = [(report.step, report.draft_length) for report in planner.reports]
    assert reported == [(step, planned[step]) for step in range(len(planned) - lag)]


def test_reports_hold_what_happened_and_how_long_it_took():
    planner = Planted(lambda stats: StepPlan(3))
    with planted(planner) as policy:
        found = run(random_trajectories(), policy, replace(modes(8)["ragged"], lag=0))
    steps = found.steps
    assert [report.accepted for report in planner.reports] == steps.accepted.tolist()
    assert [report.verified for report in planner.reports] == steps.verified.tolist()
    assert [report.requests for report in planner.reports] == steps.rows.tolist()
    assert [report.cost.seconds for report in planner.reports] == pytest.approx(np.diff(steps.ended, prepend=0.0))


def test_caps_of_single_requests_hold():
    def plan(stats):
        return StepPlan(8, caps={request.request_id: 1 for request in stats.requests[:1]})

    with planted(Planted(plan)) as policy:
        capped = run(random_trajectories(), policy, replace(modes(8)["ragged"], lag=0), concurrency=1)
    assert capped.steps.verified.max() == 1


def test_resuming_costs_the_tokens_that_were_missed():
    surface = Recorder()
    with planted(Planted(lambda stats: StepPlan(3 * (stats.step % 4 == 3)))) as policy:
        run(random_trajectories(), policy, replace(modes(8)["ragged"], lag=0), surface=surface, concurrency=1)
    resumed = [work for work in surface.work if work.rows and work.draft_length]
    assert max(work.missed for work in resumed) == 3
    assert all(work.changed for work in resumed)


def test_prompts_are_computed_in_chunks_within_the_steps_budget():
    trajectories, surface = random_trajectories(requests=30), Recorder()
    run(trajectories, fixed(3), surface=surface, concurrency=8, limits=Limits(step_tokens=64, cached_share=0.0))
    assert sum(work.prefill_tokens for work in surface.work) == trajectories.prompts.sum()
    assert any(work.rows and work.prefill_tokens for work in surface.work)
    assert max(work.prefill_tokens for work in surface.work) <= 64
    cached = Recorder()
    run(trajectories, fixed(3), surface=cached, limits=Limits(cached_share=1.0))
    assert sum(work.prefill_tokens for work in cached.work) == trajectories.prompts.size  # the last token of each


def test_items_are_used_again_only_after_all_others():
    found = shuffled(7, 20, seed=3)
    assert sorted(found[:7]) == sorted(found[7:14]) == list(range(7))
    assert len({*found[14:].tolist()}) == 6
    assert found.tolist() == shuffled(7, 20, seed=3).tolist() != shuffled(7, 20, seed=4).tolist()


@pytest.mark.parametrize(
    "text", ["", "steady", "steady:0", "steady:1.5", "steady:513", "ramp:3", "burst:1", "rollouts:0"]
)
def test_traffic_is_a_ramp_or_steady_or_rollouts(text):
    assert (concurrency("steady:64"), concurrency("ramp"), concurrency("rollouts:32")) == (64, 128, 32)
    with pytest.raises(ValueError):  # noqa: PT011 - of `int` too
        concurrency(text)


def test_a_ramp_fills_and_empties_the_batch():
    trajectories = random_trajectories(requests=400, longest=60)
    found = run(trajectories, NONE, traffic="ramp", limits=Limits(cached_share=1.0)).steps
    assert found.rows[:10].max() <= 8
    assert found.rows.max() == 128


@pytest.mark.parametrize("policy", [NONE, BATCH])
def test_a_rollout_starts_whole_when_the_last_request_of_the_one_before_has_ended(policy):
    found = run(random_trajectories(requests=22), policy, traffic="rollouts:8")
    began, counts = np.unique(found.started, return_counts=True)
    assert counts.tolist() == [8, 8, 6]
    ends = [found.finished[found.started == each].max() for each in began]
    assert began.tolist() == [0.0, *ends[:-1]]
    assert ends[-1] == found.steps.ended[-1]


def test_equal_seeds_give_equal_runs():
    runs = (run(random_trajectories(), BATCH, clock=Clock(Disturbance(), seed)) for seed in (1, 1, 2))
    one, same, other = (found.finished.tolist() for found in runs)
    assert one == same != other


def test_an_outcomes_figures_by_hand():
    trajectories = random_trajectories(requests=3)
    found = run(trajectories, NONE, concurrency=3)
    figures = found.figures()
    assert (figures["tau"], figures["rejected_share"]) == (1.0, 0.0)
    assert figures["latency_p50"] == pytest.approx(np.median(found.finished - found.started))
    assert figures["steps"] == found.steps.ended.size
    assert 0 < figures["goodput"] <= (trajectories.outputs.sum()) / found.steps.ended[0]
