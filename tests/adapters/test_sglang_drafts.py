"""SGLang's drafts in a stream equal those of the draft stage, over random schedules; needs no SGLang."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.sglang_engine import Engine, run


@pytest.mark.parametrize("trees", [False, True])
@settings(max_examples=25, deadline=None)
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 20))
def test_drafts_and_counts_are_those_of_the_stage(trees, random, steps):
    engines = [Engine(trees=trees), Engine(trees=trees, streamed=True)]
    run(random, engines, steps)
    expected, found = [engine.close() for engine in engines]
    assert found == expected
