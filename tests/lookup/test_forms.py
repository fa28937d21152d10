"""The form of the lookup for CPUs is equal to the reference, bit by bit."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.lookup import compiled, plain
from tests.lookup.runs import Run, assert_equal


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_form_for_cpus_is_the_reference(seed: int) -> None:
    assert_equal(Run(Random(seed), plain).steps(25), Run(Random(seed), compiled).steps(25))
