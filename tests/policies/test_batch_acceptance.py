"""Mean acceptance lengths: runs of one draft length tell what others would emit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.types.plan import StepReport
from specplug_batch.gains import AcceptanceLengths

LENGTHS = (1, 3, 7, 15)


class Copies:
    """Rows of stretches that a drafter copies, each followed by a token that it cannot know."""

    def __init__(self, rows, seed=0):
        self._rng, self._left, self._run = np.random.default_rng(seed), np.zeros(rows, int), np.zeros(rows, int)

    def step(self, length):
        """Serve one step; return its report."""
        kept = np.minimum(self._left, length)
        is_inside = self._left > length  # then the bonus token is of the stretch, too
        stretch = self._rng.geometric(1 / 25, len(kept)) * (self._rng.random(len(kept)) < 0.4)
        self._left = np.where(is_inside, self._left - length - 1, stretch)
        before, after = self._run, self._run + kept + 1
        self._run = np.where(kept == length, after, 0)
        fates = [(length, int(count)) for count in kept]
        return StepReport.build(0, length, len(kept), fates, runs=list(zip(before, after, strict=True)))


def emitted(length, steps=4000):
    """Return the tokens per row and step at a constant length."""
    rows = Copies(8, seed=1)
    return 1 + sum(rows.step(length).accepted for _ in range(steps)) / (8 * steps)


@pytest.mark.parametrize("served", [(3,), (7,), (15,), (3, 15), (7, 1, 15)], ids=str)
def test_runs_of_any_length_tell_what_others_would_emit(served):
    rows, found = Copies(64), AcceptanceLengths(15)
    for step in range(1500):
        found.observe(rows.step(served[step % len(served)]))
    for length in LENGTHS:
        assert found.expected()[length] == pytest.approx(emitted(length), rel=0.1)
    assert found.expected()[0] == 1.0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 16)), min_size=1, max_size=8))
def test_a_run_takes_as_many_steps_as_it_fills(runs):
    """Held to plain arithmetic over one step."""
    found = AcceptanceLengths(5)
    found.observe(StepReport.build(0, 5, len(runs), [], runs=[(before, before + more) for before, more in runs]))
    keep = 1 - 1 / max(48, 768 / len(runs))
    for length in range(1, 6):
        assumed = sum(0.6**place for place in range(length + 1))
        steps = sum(-(-(before + more) // (length + 1)) - -(-before // (length + 1)) for before, more in runs)
        expected = (4 * keep + sum(more for _, more in runs)) / (4 / assumed * keep + steps)
        assert found.expected()[length] == pytest.approx(np.clip(expected, 1, length + 1))


def test_a_drafter_that_is_worse_at_later_positions_corrects_what_is_expected():
    """At 3 tokens its runs promise more of 7 than it holds; at 7 it is seen, and remembered at 3."""
    rates, rng, found = np.array([0.9, 0.85, 0.8, 0.3, 0.2, 0.1, 0.05]), np.random.default_rng(0), AcceptanceLengths(7)
    truth = np.concatenate(([1.0], 1 + np.cumsum(np.cumprod(rates))))
    run, promised = np.zeros(16, int), []
    for length in [3, 7] * 8:
        found.settle(length)
        for _ in range(200):
            kept = (rng.random((16, 7)) < rates).cumprod(1)[:, :length].sum(1)
            after = run + kept + 1
            found.observe(StepReport.build(0, length, 16, [], runs=list(zip(run, after, strict=True))))
            run = np.where(kept == length, after, 0)
        promised.append(found.expected()[7] / found.expected()[3])
    assert promised[0] > 1.15 * truth[7] / truth[3]
    assert promised[-2] == pytest.approx(truth[7] / truth[3], rel=0.08)


def test_few_requests_correct_little():
    """Eight rows emit half of what was expected for a while: that may be their texts."""
    rows, found = Copies(8), AcceptanceLengths(15)
    found.settle(7)
    for _ in range(400):
        found.observe(rows.step(7))
    gained = found.expected()[15] / found.expected()[7]
    found.settle(15)
    for _ in range(32):
        found.observe(StepReport.build(0, 15, 8, [(15, 0)] * 8, runs=[(0, 1)] * 8))
    found.settle(7)
    for _ in range(400):
        found.observe(rows.step(7))
    assert found.expected()[15] / found.expected()[7] == pytest.approx(0.9 * gained, rel=0.05)


def test_optimism_shrinks_with_what_was_verified():
    rows, found = Copies(8), AcceptanceLengths(15)
    first = found.expected(1.5)[7] / found.expected()[7]
    for _ in range(200):
        found.observe(rows.step(7))
    assert 1.0 < found.expected(1.5)[7] / found.expected()[7] < first


def test_requests_without_drafts_emit_one_token():
    """Most rows of hopeless traffic have none; their steps cost as much as the others'."""
    found = AcceptanceLengths(7)
    for step in range(400):
        found.observe(StepReport.build(step, 7, 8, [(7, 1)], runs=[(0, 2)]))
    assert found.expected()[7] == pytest.approx(9 / 8, rel=0.01)


def test_steps_without_drafts_teach_nothing():
    found = AcceptanceLengths(7)
    before = found.expected()
    found.observe(StepReport.build(0, 0, 8, []))
    assert (found.expected() == before).all()
