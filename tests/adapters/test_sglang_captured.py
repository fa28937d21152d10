"""What is captured for which draft length: batches up to the largest that the policy drafts so long for."""

from __future__ import annotations

import pytest

from specplug.types.caps import DraftLengthChange, EngineCaps
from specplug_sglang.config import largest_batches, least_captured, needed_batches


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8]), (400, [1, 2, 4, 8])],
)
def test_batches_are_captured_up_to_the_least_that_holds_the_largest(largest, expected):
    assert needed_batches([8, 1, 4, 2], largest) == expected


def test_an_engine_that_captures_nothing_has_no_batches():
    assert needed_batches(None, 4) is None
    assert needed_batches([], 4) is None


def test_each_draft_length_has_its_largest_batch():
    def longest(batch_size: int) -> int:
        return 8 if batch_size <= 2 else 3 if batch_size <= 5 else 0

    assert largest_batches((0, 1, 2, 4, 8, 16), longest, 7) == {0: 7, 1: 5, 2: 5, 4: 2, 8: 2, 16: 0}


def test_a_policy_that_states_nothing_drafts_so_long_for_any_batch():
    assert largest_batches((0, 8), lambda batch_size: 8, 7) == {0: 7, 8: 7}


def test_a_step_takes_the_least_captured_length_that_holds_its_drafts():
    caps = EngineCaps(8, captured_draft_lengths=(0, 1, 4, 8), draft_length_change=DraftLengthChange.CAPTURED)
    assert [least_captured(caps, longest) for longest in (0, 1, 2, 4, 5, 8)] == [0, 1, 4, 4, 8, 8]
    assert least_captured(EngineCaps(8), 3) == 3
