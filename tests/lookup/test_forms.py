"""The form of the lookup for CPUs is equal to the reference, bit by bit, and neither depends on the order of rows."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.lookup import compiled, plain
from tests.lookup.runs import Run, assert_equal


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_the_form_for_cpus_is_the_reference_in_any_order_of_rows(seed: int, opposite: bool, scrambled: bool) -> None:
    expected, found = Run(Random(seed), plain), Run(Random(seed), compiled, opposite=opposite)
    if scrambled:
        expected.scramble()
        found.scramble()
    assert_equal(expected.steps(25), found.steps(25))
