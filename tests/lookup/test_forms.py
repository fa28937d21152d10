"""The form of the lookup for CPUs is equal to the reference, bit by bit, and neither depends on the order of rows."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.lookup import compiled, plain
from tests.lookup.runs import Run, assert_equal_steps
from tests.lookup.static import Served


@pytest.mark.parametrize("kind", [Run, Served], ids=["texts and responses", "corpora too"])
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32), opposite=st.booleans(), scrambled=st.booleans())
def test_the_form_for_cpus_is_the_reference_in_any_order_of_rows(
    kind: type[Run], seed: int, opposite: bool, scrambled: bool
) -> None:
    copied = {"copied": seed % 2 == 1} if kind is Served else {}
    expected, found = kind(Random(seed), plain), kind(Random(seed), compiled, opposite=opposite, **copied)
    for _ in range(3):
        assert_equal_steps(expected, found, 8)
        if scrambled:
            expected.scramble()
            found.scramble()
