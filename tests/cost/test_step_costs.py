"""Learnt step costs: recovered from noisy measurements with pauses, monotone, and quick to follow a change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.cost import StepCosts
from specplug.cost.estimates import curve_of, shrunk
from specplug.types.plan import StepCost

LENGTHS = (0, 1, 3, 7, 15)


def flat(tokens):
    return max(1.0, tokens / 256)


def measured(requests, length, seconds, context=0):
    return StepCost(requests, requests * (length + 1), context, length, seconds)


def predicted(costs, requests, context=0):
    """Return the predicted seconds of steps in which all rows verify each of the draft lengths."""
    return costs.seconds(requests, context, [requests * (length + 1) for length in LENGTHS], LENGTHS)


def smooth(requests, context, length, slow=1.0):
    """A GPU's step: memory first, arithmetic later, a price for drafting; in seconds."""
    tokens = requests * (length + 1)
    return slow * 1e-3 * (6 + 0.4 * (length > 0) + 2.2 * (tokens / 600) ** 1.6 + 1.2e-5 * context)


def steep(requests, context, length, slow=1.0):
    """A CPU's step: arithmetic from the first token."""
    return slow * 1e-3 * (1 + 0.3 * requests * (length + 1) + 1e-5 * context)


def staged(requests, context, length, slow=1.0):
    """A mixture of experts: more of them are read for more tokens; some lengths have no CUDA graph."""
    tokens = requests * (length + 1)
    return slow * 1e-3 * (4 + 9 * (1 - (15 / 16) ** tokens) + 0.01 * tokens + (2 if length == 3 else 0))


def learn(costs, surface, steps, rng, batches=(1, 4, 8, 32, 128), slow=1.0):
    for step in range(steps):
        requests = batches[step // 40 % len(batches)]
        length = int(rng.choice(LENGTHS))
        context = int(requests * rng.integers(500, 4000))
        seconds = surface(requests, context, length, slow) * np.exp(rng.normal(0, 0.03))
        costs.observe(measured(requests, length, seconds * (15 if rng.random() < 0.01 else 1), context))


@pytest.mark.parametrize("surface", [smooth, steep, staged])
def test_ratios_between_draft_lengths_are_recovered_despite_noise_and_pauses(surface):
    costs, rng = StepCosts(flat), np.random.default_rng(1)
    learn(costs, surface, 3000, rng)
    for requests in (1, 4, 8, 32, 128):
        found = predicted(costs, requests, 2000 * requests)
        true = np.array([surface(requests, 2000 * requests, length) for length in LENGTHS])
        assert np.abs(found / found[0] / (true / true[0]) - 1).max() < 0.06
    assert costs.error is not None
    assert costs.error < 0.08


@pytest.mark.parametrize("surface", [smooth, steep])
def test_batch_sizes_between_measured_ones_are_predicted(surface):
    costs, rng = StepCosts(flat), np.random.default_rng(2)
    learn(costs, surface, 3000, rng)
    for requests in (2, 16, 64):
        found = predicted(costs, requests, 2000 * requests)
        true = np.array([surface(requests, 2000 * requests, length) for length in LENGTHS])
        assert np.abs(found / true - 1).max() < 0.25


def test_a_server_that_becomes_slower_is_followed():
    costs, rng = StepCosts(flat), np.random.default_rng(3)
    learn(costs, smooth, 1000, rng)
    learn(costs, smooth, 2000, rng, slow=1.5)
    found = predicted(costs, 8, 16000)
    true = np.array([smooth(8, 16000, length, 1.5) for length in LENGTHS])
    assert np.abs(found / true - 1).max() < 0.1


def test_prompts_raise_the_cost_of_draft_tokens_that_share_their_steps():
    """Steps of one memory-bound decode, where drafts are free, and steps that prompts fill, where they are not."""
    costs, rng = StepCosts(flat), np.random.default_rng(4)

    def learn_mixed(share):
        for _ in range(1000):
            length, prefill = int(rng.choice(LENGTHS)), 600 * int(rng.random() < share)
            tokens = 8 * (length + 1) + prefill
            seconds = 5e-3 + 1e-5 * max(0, tokens - 256) + 1e-3 * (prefill > 0)
            costs.observe(StepCost(8, tokens, 0, length, seconds * np.exp(rng.normal(0, 0.02)), prefill))

    learn_mixed(0.0)
    free = predicted(costs, 8)
    learn_mixed(0.5)
    shared = predicted(costs, 8)
    assert free[-1] - free[0] < 3e-4
    assert shared[-1] - shared[0] == pytest.approx(0.5 * 1e-5 * 8 * 15, rel=0.35)
    assert shared[0] == pytest.approx(0.5 * 5e-3 + 0.5 * (6e-3 + 1e-5 * (608 - 256)), rel=0.15)


def test_beside_prompts_a_step_costs_what_it_does_alone_and_its_drafts_what_they_add():
    """Prompts fill half of the steps, and would take most of the time."""
    costs, rng = StepCosts(flat), np.random.default_rng(3)
    for _ in range(2000):
        prompt, drafted = int(rng.choice([0, 600])), int(rng.choice([0, 8, 64]))
        tokens = 8 + drafted + prompt
        seconds = 1e-3 * (5 + 0.05 * max(0, tokens - 32)) * np.exp(rng.normal(0, 0.02))
        costs.observe(StepCost(8, tokens, 4000, 15 if drafted else 0, seconds, prompt_tokens=prompt))
    tokens, lengths = [8, 16, 72], [0, 15, 15]
    with_prompts = costs.seconds(8, 4000, tokens, lengths)
    beside = costs.seconds_beside_prompts(8, 4000, tokens, lengths)
    assert with_prompts[0] > 3 * beside[0]
    assert np.diff(beside) == pytest.approx(np.diff(with_prompts))
    assert beside == pytest.approx(1e-3 * np.array([5.0, 5.2, 7.6]), rel=0.06)


def test_the_first_step_with_drafts_after_some_without_teaches_nothing():
    costs = StepCosts(flat)
    for _ in range(20):
        for length, seconds in ((0, 0.010), (0, 0.010), (3, 0.030), (3, 0.012), (3, 0.012)):  # the third catches up
            costs.observe(measured(32, length, seconds))
    found = predicted(costs, 32)[list(LENGTHS).index(3)]
    assert found == pytest.approx(0.012, rel=0.02)


def profile(seconds=lambda tokens: 1e-3 * (4 + tokens / 100), sizes=(1, 8, 64, 128, 256, 512), runs=5):
    """Return costs as an engine profiles them: as many requests as tokens, and one run that was interrupted."""
    return [
        StepCost(size, size, 8192 * size, 0, seconds(size) * (1 if run else 40))
        for size in sizes
        for run in range(runs)
    ]


def test_predictions_start_from_a_profile():
    costs = StepCosts(flat)
    costs.calibrate(profile())
    assert not costs.is_measured
    assert costs.basis.startswith("profiled")
    for requests in (1, 4, 32, 100):  # beyond the profile as well
        expected = [1e-3 * (4 + max(1, requests * (length + 1)) / 100) for length in LENGTHS]
        assert predicted(costs, requests).tolist() == pytest.approx(expected)


def test_a_profile_keeps_its_ratios_when_the_first_step_shows_its_scale():
    costs = StepCosts(flat)
    costs.calibrate(profile())
    costs.observe(measured(32, 3, 2 * 1e-3 * (4 + 128 / 100)))  # the host and the sampler double it
    found = predicted(costs, 64)
    true = np.array([4 + 64 * (length + 1) / 100 for length in LENGTHS])
    assert np.abs(found / found[0] / (true / true[0]) - 1).max() < 0.15
    assert found == pytest.approx(2e-3 * true, rel=0.15)
    assert costs.basis == "measured"


def test_measured_steps_outweigh_a_profile():
    costs, rng = StepCosts(flat), np.random.default_rng(6)
    costs.calibrate(profile(lambda tokens: 1e-3 * (1 + tokens)))
    learn(costs, smooth, 2000, rng)
    found = predicted(costs, 32, 64000)
    true = np.array([smooth(32, 64000, length) for length in LENGTHS])
    assert np.abs(found / found[0] / (true / true[0]) - 1).max() < 0.06


UNKNOWN = (-1.0, 0.0, float("inf"), float("nan"))


@pytest.mark.parametrize(
    "useless", [[], profile(sizes=(8,)), [measured(each, 0, UNKNOWN[each - 1]) for each in range(1, 5)]]
)
def test_a_profile_that_shows_nothing_changes_nothing(useless):
    costs = StepCosts(flat)
    costs.calibrate(useless)
    assert costs.basis.startswith("assumed")
    assert predicted(costs, 64).tolist() == [flat(64 * (length + 1)) for length in LENGTHS]


@given(seconds=st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=9))
def test_a_profiled_curve_never_falls_and_passes_what_rises(seconds):
    sizes = [1 << power for power in range(len(seconds))]
    curve = curve_of([StepCost(size, size, 0, 0, each) for size, each in zip(sizes, seconds, strict=True)])
    assert curve is not None
    values = [curve(tokens) for tokens in range(sizes[-1] + 99)]
    assert (np.diff(values) >= -1e-12).all()
    assert [values[size] for size in sizes] == pytest.approx(np.maximum.accumulate(seconds).tolist())


def test_measurements_of_like_batch_sizes_count_up_to_a_number():
    costs = StepCosts(flat)
    for _ in range(9):
        costs.observe(measured(32, 7, 0.01))
    steps = ((32, 256, 7), (40, 320, 7), (128, 1024, 7), (32, 128, 3))
    own, near, far, other = (costs.measured(*step) for step in steps)
    assert own == 9 > near > far == other == 0


def test_tokens_of_ragged_rows_are_told_apart_under_one_draft_length():
    """Steps of 32 requests with any number of draft tokens; a mixed-length graph costs a step of its own."""
    costs, rng = StepCosts(flat), np.random.default_rng(5)

    def seconds(drafts, length):
        return 1e-3 * (6 + 0.8 * (length > 0) + 0.02 * max(0, 32 + drafts - 100))

    for _ in range(1500):
        length = int(rng.choice((0, 15)))
        drafts = int(rng.integers(0, 300)) if length else 0
        noisy = seconds(drafts, length) * np.exp(rng.normal(0, 0.03))
        costs.observe(StepCost(32, 32 + drafts, 0, length, noisy))
    drafts, lengths = (0, 0, 50, 100, 200, 280), (0, 15, 15, 15, 15, 15)
    found = costs.seconds(32, 0, [32 + each for each in drafts], lengths)
    true = np.array(list(map(seconds, drafts, lengths)))
    assert np.abs(found / true - 1).max() < 0.06


@settings(max_examples=50, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 256), st.sampled_from(LENGTHS), st.floats(1e-4, 1.0)), max_size=20))
def test_the_fit_never_makes_more_work_cheaper(steps):
    costs = StepCosts(flat)
    for requests, length, seconds in steps:
        costs.observe(measured(requests, length, seconds))
    unseen = predicted(costs, 999)  # a batch size that has no correction
    assert (np.diff(unseen) >= -1e-12).all()
    assert np.isfinite(unseen).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_cost_of_a_further_token_does_not_follow_noise(seed):
    """One request at a time: neighbouring numbers of tokens differ by less than their measurements scatter."""
    costs, rng = StepCosts(flat), np.random.default_rng(seed)
    for _ in range(600):
        drafted = int(rng.choice([0, 1, 2, 4, 6, 8, 12, 15], p=[0.2, 0.05, 0.05, 0.1, 0.1, 0.2, 0.1, 0.2]))
        costs.observe(StepCost(1, 1 + drafted, 500, 15, (3.5 + 0.08 * drafted) * 1e-3 * np.exp(rng.normal(0, 0.06))))
    drafted = np.array([0, 1, 2, 4, 6, 8, 12, 15])
    found = costs.seconds(1, 500, (1 + drafted).tolist(), [15] * len(drafted))
    first, *others = np.diff(found) / np.diff(drafted)
    assert others == pytest.approx([8e-5] * len(others), abs=2e-5)
    assert first == pytest.approx(8e-5, abs=4e-5)  # it may cost more than those after it, and has a term of its own


class TestShrunk:
    """Corrections of cells that share what noise does not tell apart."""

    def test_differences_within_the_noise_vanish(self):
        found = shrunk(np.full(4, 10.0), np.array([0.01, -0.01, 0.02, 0.02]), 0.01)
        assert np.ptp(found) == 0.0
        assert found[0] == pytest.approx(0.01, rel=0.02)

    @given(
        cells=st.lists(st.tuples(st.integers(0, 40), st.floats(-0.7, 0.7)), min_size=1, max_size=8),
        noise=st.floats(1e-6, 0.1),
    )
    def test_none_leaves_the_range_of_all_and_zero(self, cells, noise):
        counts, stated = np.array(cells, np.float64).T
        found = shrunk(counts, stated, noise)
        known = [0.0, *stated[counts > 0]]
        assert min(known) - 1e-9 <= found.min()
        assert found.max() <= max(known) + 1e-9
