"""Runs of one draft length tell what others would emit, and when the plan halves of `batch` try something else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.types.plan import StepReport
from specplug_batch.gains import REST, AcceptanceLengths, Probes

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


def probes_until(last: int, *, resumes: int) -> list[int]:
    probes = Probes()
    return [step for step in range(last) if probes.is_due(step, resumes=resumes)]


def test_probes_become_rare():
    waits = [after - before for before, after in pairwise(probes_until(3000, resumes=0))]
    assert waits[:9] == [4, 8, 16, 32, 64, 128, 256, 512, 512]


def test_probes_that_resume_drafting_become_less_rare():
    many, one = ([b - a for a, b in pairwise(probes_until(3000, resumes=requests))] for requests in (8, 1))
    assert many[:9] == [4, 8, 16, 32, 64, 128, 256, 256, 256]
    assert one[:9] == [4, 8, 16, 32, 64, 64, 64, 64, 64]


@pytest.mark.parametrize(("added", "wait"), [(0.4, 64), (0.04, 10), (0.001, 4)])
def test_probes_come_as_often_as_a_share_of_the_time_allows(added, wait):
    probes = Probes()
    found = [step for step in range(3000) if probes.is_due(step, resumes=1, added=added)]
    assert {after - before for before, after in pairwise(found[8:])} == {wait}


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_probe_that_found_something_goes_on_once(lag):
    """Its report comes `lag` steps later, and so do those of the steps in which it goes on."""
    probes, found = Probes(), []
    for step in range(300):
        if step - lag in found:
            probes.follow(step - lag)
        if probes.is_due(step, resumes=8):
            found.append(step)
        elif found:
            assert probes.rest(step) == 1 or step - found[-1] > lag
    assert [step for step in found if step >= 128] == [128, *range(128 + lag, 136), 256, *range(256 + lag, 264)]


def test_after_200_steps_they_are_at_most_half_a_per_cent():
    found = probes_until(20000, resumes=8)
    for last in range(600, 20000):
        assert sum(200 <= step < last for step in found) <= 0.005 * (last - 200) + 1


def test_no_rest_is_longer_than_the_time_to_the_next_probe():
    probes = Probes()
    for step in range(1000):
        if probes.is_due(step, resumes=8):
            continue
        rest = probes.rest(step)
        assert 1 <= rest <= REST
        assert not any(probes.is_due(later) for later in range(step + 1, step + rest))


@pytest.mark.parametrize("resumes", [0, 8])
def test_a_change_lets_them_come_sooner(resumes):
    calm, changed = Probes(), Probes()
    for step in range(2000):
        assert calm.is_due(step, resumes=resumes) is changed.is_due(step, resumes=resumes)
    changed.hasten()
    counts = [sum(each.is_due(step, resumes=resumes) for step in range(2000, 4000)) for each in (calm, changed)]
    assert counts[1] > counts[0]
