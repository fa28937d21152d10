"""The G-test: right level, right power, and no pass for the impossible."""

import numpy as np
import pytest
from scipy import stats

from specplug.errors import ContractError
from specplug.testing.equality import MIN_EXPECTED, g_test, g_test_power

DISTRIBUTION = np.array([0.4, 0.3, 0.2, 0.1])
OTHER = np.array([0.45, 0.3, 0.15, 0.1])


def samples(distribution, size, count, seed=0):
    return np.random.default_rng(seed).multinomial(size, distribution, size=count)


def test_equals_scipy_where_nothing_is_pooled():
    counts = samples(OTHER, 1000, 1)[0]
    expected = stats.power_divergence(counts, DISTRIBUTION * 1000, lambda_="log-likelihood").pvalue
    assert g_test(counts, DISTRIBUTION) == pytest.approx(expected)


def test_p_values_are_uniform_under_the_distribution():
    found = [g_test(counts, DISTRIBUTION) for counts in samples(DISTRIBUTION, 2000, 500)]
    assert stats.kstest(found, "uniform").pvalue > 1e-4


def test_power_is_the_share_of_rejections():
    predicted = g_test_power(500, DISTRIBUTION, OTHER, alpha=0.05)
    found = np.mean([g_test(counts, DISTRIBUTION) < 0.05 for counts in samples(OTHER, 500, 500)])
    assert 0.2 < predicted < 0.95
    assert found == pytest.approx(predicted, abs=0.08)


def test_power_is_the_level_without_a_difference_and_grows_with_the_sample():
    assert g_test_power(1000, DISTRIBUTION, DISTRIBUTION, alpha=0.01) == pytest.approx(0.01, rel=0.01)
    powers = [g_test_power(size, DISTRIBUTION, OTHER, alpha=1e-6) for size in (500, 2000, 8000)]
    assert powers == sorted(powers)
    assert powers[-1] > 0.999


def test_an_impossible_outcome_convicts():
    assert g_test([999, 0, 1], [0.5, 0.5, 0.0]) == 0.0
    assert g_test_power(10, [0.5, 0.5, 0.0], [0.5, 0.4, 0.1], alpha=1e-9) == 1.0


def test_outcomes_of_probability_0_that_never_occur_change_nothing():
    assert g_test([60, 40, 0], [0.5, 0.5, 0.0]) == g_test([60, 40], [0.5, 0.5])


def test_small_cells_are_pooled():
    """Of 100 counts, the two cells that expect 3 each become one that expects 6; 4 and 90 remain, and 4 joins 90."""
    assert MIN_EXPECTED == 5.0
    pooled = g_test([90, 2, 3, 5], [0.9, 0.04, 0.03, 0.03])
    assert pooled == pytest.approx(g_test([92, 8], [0.94, 0.06]))


def test_a_single_cell_tests_nothing():
    assert g_test([7], [1.0]) == 1.0
    assert g_test([1, 1], [0.5, 0.5]) == 1.0
    assert g_test_power(2, [0.5, 0.5], [0.9, 0.1], alpha=0.05) == 0.0


@pytest.mark.parametrize(
    ("counts", "probs", "message"),
    [
        ([1, 2], [1.0], "expected two lists of one length"),
        ([0, 0], [0.5, 0.5], "at least one count"),
        ([1, 2], [0.5, 0.4], "not a distribution; found sum 0.9"),
        ([1, 2], [1.5, -0.5], "not a distribution"),
    ],
)
def test_mistakes_are_reported(counts, probs, message):
    with pytest.raises(ContractError, match=message):
        g_test(counts, probs)
