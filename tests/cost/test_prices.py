"""What draft tokens have to be worth, from the seconds that steps take."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.cost import entry_and_prices, prices_of


@given(first=st.integers(0, 9), seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=20), rate=st.floats(0.1, 4))
def test_prices_are_the_slopes_of_the_greatest_convex_function_below_the_seconds(first, seconds, rate):
    extra = [first + 3 * place for place in range(len(seconds))]
    prices = prices_of(extra, seconds, rate)
    assert list(prices) == sorted(prices)
    for place in range(len(seconds) - 1):
        found = max([price.survival for price in prices if price.after <= extra[place]], default=0.0)
        # The slope at a place: the steepest lower bound from the left, of the flattest ways on to the right.
        slope = max(
            min(
                (seconds[right] - seconds[left]) / (extra[right] - extra[left])
                for right in range(place + 1, len(extra))
            )
            for left in range(place + 1)
        )
        assert found == pytest.approx(max(0.0, rate * slope), abs=2e-6)


@given(token=st.floats(1e-6, 1e-2), rate=st.floats(1, 1000))
@example(token=0.0044, rate=3.0)
def test_where_every_token_costs_the_same_rounding_lets_no_price_fall(token, rate):
    extra = [0, 1, *range(3, 480, 7)]
    seconds = [0.1 + token * count for count in extra]
    for prices in (prices_of(extra, seconds, rate), entry_and_prices(extra, seconds, rate)[1]):
        assert list(prices) == sorted(prices)
        assert prices[0].survival == pytest.approx(rate * token)


@given(rises=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=9), rate=st.floats(0.1, 4))
def test_costs_that_rise_evenly_have_no_entry(rises, rate):
    seconds = list(itertools.accumulate(sorted(rises), initial=1.0))
    assert entry_and_prices(range(len(seconds)), seconds, rate) == (0.0, prices_of(range(len(seconds)), seconds, rate))


def test_a_step_that_any_drafts_make_longer_has_an_entry_and_cheap_further_tokens():
    """As on CPUs, where two tokens cost half as much again as one, and sixteen twice as much."""
    entry, prices = entry_and_prices([0, 1, 15], [1.0, 1.5, 2.0], rate=1.0)
    assert entry == pytest.approx(0.5)
    assert [(round(price.survival, 4), price.after) for price in prices] == [(round(0.5 / 14, 4), 1)]


@pytest.mark.parametrize("extra", [[0], [0, 1]])
def test_without_costs_of_further_tokens_there_is_no_entry(extra):
    seconds = [1.0, 1.5][: len(extra)]
    assert entry_and_prices(extra, seconds, 1.0) == (0.0, prices_of(extra, seconds, 1.0))


def test_where_costs_rise_ever_more_slowly_few_tokens_are_not_taken_for_cheap():
    seconds = [1.0, 1.5, 1.7, 1.9, 2.0, 2.05, 2.1, 2.15, 2.2]
    entry, prices = entry_and_prices(range(9), seconds, rate=1.0)
    for count in range(3, 9):
        charged = entry + sum(max(price.survival for price in prices if price.after <= place) for place in range(count))
        assert charged == pytest.approx(seconds[count] - 1.0, abs=0.06)


@given(seconds=st.lists(st.floats(0.1, 10), min_size=2, max_size=9), rate=st.floats(0.1, 4))
@example(seconds=[2.36, 2.43, 1.66, 1.49, 2.44, 1.91, 2.1, 1.79, 0.69], rate=1.0)  # noise: a longer step takes less
def test_whatever_the_estimates_no_entry_is_negative_and_no_price_falls(seconds, rate):
    entry, prices = entry_and_prices([0, 1, 2, 3, 4, 6, 8, 12, 15][: len(seconds)], seconds, rate)
    assert entry >= 0.0
    ends = [(0.0, 0), *prices]
    assert all(one[0] <= other[0] and one[1] <= other[1] for one, other in itertools.pairwise(ends))
