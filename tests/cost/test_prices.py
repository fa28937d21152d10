"""What draft tokens have to be worth, from the seconds that steps take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.cost import prices_of


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
