from __future__ import annotations

import pytest

from specplug.replay.calibration import FINE_BINS, Calibration
from specplug.replay.score import ScoringRoofline, StepCounts, mean_speedup, pool

FOUR = StepCounts.from_rows([[4, 4, 5, 2], [4, 0, 1, 3], [0, 0, 1, 5]])


def test_counts_by_hand():
    assert (FOUR.steps, FOUR.verified, FOUR.accepted, FOUR.emitted) == (10, 20, 8, 18)
    assert FOUR.tau == pytest.approx(1.8)
    assert FOUR.acceptance_rate == pytest.approx(0.4)
    assert FOUR.drafts_per_step == pytest.approx(2)
    assert FOUR.waste == pytest.approx(12 / 18)


def test_speedup_by_hand():
    assert FOUR.speedup(1) == pytest.approx(18 / (10 * 1.02))
    # at 128, 5 steps of 128 * 5 tokens and 5 steps of 128
    assert FOUR.speedup(128) == pytest.approx(18 / (5 * (2.5 + 0.02) + 5 * (1 + 0.02)))
    # at 256, even a single token fills the step
    assert FOUR.speedup(256) == pytest.approx(18 / (5 * 5.02 + 5 * 1.02))
    assert FOUR.speedup(8, ScoringRoofline(n_sat=16, overhead=0.5)) == pytest.approx(18 / (5 * 3.0 + 5 * 1.5))


def test_pooled_histograms_add_and_means_are_geometric():
    once = StepCounts.from_rows([[0, 0, 1, 7]])
    both = pool([FOUR, once])
    assert both.rows() == [[0, 0, 1, 12], [4, 0, 1, 3], [4, 4, 5, 2]]
    product = FOUR.speedup(64) * once.speedup(64)
    assert mean_speedup([FOUR, once, StepCounts()], 64) == pytest.approx(product**0.5)


def test_workloads_of_empty_outputs_do_not_make_the_mean_0():
    empty = StepCounts.from_rows([[0, 0, 0, 3]])
    assert mean_speedup([FOUR, empty], 64) == pytest.approx(FOUR.speedup(64))


def test_rows_come_back():
    assert StepCounts.from_rows(FOUR.rows()) == FOUR


def test_nothing_counted_is_nothing_divided():
    nothing = StepCounts()
    assert nothing.tau == nothing.acceptance_rate == nothing.waste == nothing.speedup(8) == 0
    assert mean_speedup([nothing], 8) == 0
    assert Calibration().brier == 0
    assert Calibration().auc is None
    assert Calibration().curve() == []


def test_calibration_by_hand():
    seen = Calibration()
    seen.add([0.9, 0.8, 0.5], 2)
    seen.add([0.9], 0)
    seen.add([1.0], 1)
    assert seen.count == 5
    assert seen.brier == pytest.approx((0.01 + 0.04 + 0.25 + 0.81 + 0) / 5)
    curve = seen.curve()
    assert [(bin.count, round(bin.confidence, 6), bin.acceptance) for bin in curve] == [
        (1, 0.5, 0.0),
        (1, 0.8, 1.0),
        (3, pytest.approx(2.8 / 3), pytest.approx(2 / 3)),
    ]
    assert seen.auc == pytest.approx((1.0 + 0.5 + 1.0 + 1.0 + 0.0 + 1.0) / 6)
    assert seen.error == pytest.approx((0.5 + 0.2 + 3 * abs(2.8 / 3 - 2 / 3)) / 5)


def test_calibrations_add_and_long_ones_are_summed_on_the_way():
    one, other = Calibration(), Calibration()
    for _ in range(3000):
        one.add([0.25, 0.75, 0.125], 2)
        other.add([0.5], 1)
    both = one + other
    assert both.count == 12_000
    assert both.sums.shape == (4, FINE_BINS)
    assert both.ranks.sum() == 12_000
    assert both.brier == pytest.approx((3000 * (0.5625 + 0.0625 + 0.015625) + 3000 * 0.25) / 12_000)
