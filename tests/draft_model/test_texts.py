"""A text's cached ids and its missing ones are together its window: its first ids and its newest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from specplug.draft_model.texts import Text

IDS = st.lists(st.integers(0, 2), max_size=12)


def agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many of the first ids are equal."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Compared(RuleBasedStateMachine):
    """A text beside plain lists: all of its ids, and those that the model has computed, written in order.

    The lists may be right only if every id that the text says is cached is where its window has it.
    """

    def __init__(self, max_length: int, num_first: int) -> None:
        super().__init__()
        self.text, self.max_length, self.num_first = Text(max_length, num_first), max_length, num_first
        self.ids: list[int] = []
        self.cached: list[int] = []
        self.reused = 0  # how many of the first ids have been in the cache ever since, if all of the text fits

    def window(self) -> list[int]:
        """Return as many ids as the text says that it has: the first ones, and the newest."""
        first = self.ids[: self.num_first]
        return first + self.ids[len(self.ids) - (len(self.text) - len(first)) :]

    @rule(back=st.integers(0, 12), ids=IDS)
    def change(self, back: int, ids: list[int]) -> None:
        keep = max(0, len(self.ids) - back)
        self.text.change(keep, ids)
        self.ids[keep:] = ids
        self.reused = agreeing(self.cached[: self.reused], self.ids)

    @rule(share=st.floats(0, 1), drafted=IDS)
    def draft(self, share: float, drafted: list[int]) -> None:
        """Compute what is missing, then up to as many ids as there is room for."""
        room = round(share * (self.max_length // 2 - self.num_first))
        was_long = len(self.text) + room > self.max_length
        missing = self.text.missing(room)
        self.cached[self.text.num_cached :] = missing
        assert self.cached == self.window()
        assert len(self.cached) + room <= self.max_length
        assert bool(missing) == bool(self.ids)
        if was_long:
            assert len(missing) == len(self.cached)
            assert len(self.cached) >= min(len(self.ids), self.max_length // 2)
        elif len(self.text) == len(self.ids):
            assert len(missing) == len(self.ids) - min(self.reused, max(0, len(self.ids) - 1))
        self.text.cache(missing)
        self.text.cache(drafted[:room])
        self.cached += drafted[:room]
        self.reused = len(self.cached) if len(self.text) == len(self.ids) else 0

    @rule(room=st.integers(0, 2), share=st.floats(0, 1))
    def catch_up(self, room: int, share: float) -> None:
        """Compute a part of what is missing."""
        missing = self.text.missing(room)
        part = missing[: round(share * max(0, len(missing) - 1))]
        self.cached[self.text.num_cached :] = part
        self.text.cache(part)
        self.reused = len(self.cached) if len(self.text) == len(self.ids) else 0

    @invariant()
    def counts(self) -> None:
        assert self.text.num_ids == len(self.ids)
        assert self.text.num_cached <= len(self.cached)


@pytest.mark.parametrize(("max_length", "num_first"), [(12, 0), (13, 1), (16, 3), (1000, 2)])
def test_cached_and_missing_ids_are_the_window(max_length: int, num_first: int) -> None:
    run_state_machine_as_test(lambda: Compared(max_length, num_first), settings=settings(max_examples=60))


@given(num_first=st.integers(0, 3), counts=st.lists(st.integers(1, 5), max_size=80))
def test_the_window_moves_seldom(num_first: int, counts: list[int]) -> None:
    """It moves by about half of its length, so the ids computed for each token do not grow with the text."""
    text, moves, length = Text(32, num_first), 0, 0
    for count in counts:
        text.change(length, list(range(length, length + count)))
        length += count
        missing = text.missing(2)
        moves += len(missing) > count
        text.cache(missing)
    assert moves <= length / (32 // 2 - num_first - 2 - 5)


def test_a_rejected_draft_is_overwritten_and_an_accepted_one_is_not_computed_again() -> None:
    text = Text(100)
    text.change(0, [1, 2, 3])
    assert text.missing(4) == [1, 2, 3]
    text.cache([1, 2, 3])
    text.cache([4, 5, 6])
    text.change(3, [4, 5, 9])
    assert (text.num_cached, text.missing(4)) == (5, [9])
    text.cache([9])
    assert text.missing(4) == [9]  # the last one again, for its logits
    text.change(1, [7])
    assert (text.num_cached, text.missing(4)) == (1, [7])


def test_a_change_before_the_window_begins_another_one() -> None:
    text = Text(10, num_first=1)
    text.change(0, list(range(20)))
    assert text.missing(2) == [0, 15, 16, 17, 18, 19]
    text.cache([0, 15, 16, 17, 18, 19])
    text.change(12, [90])
    assert (text.num_cached, text.missing(2)) == (0, [0, 8, 9, 10, 11, 90])
    text.cache([0, 8, 9, 10, 11, 90])
    text.change(8, [])  # of the window only its first ids are left
    assert (text.num_cached, text.missing(2)) == (0, [0, 3, 4, 5, 6, 7])
    text.change(0, [5, 6])
    assert (len(text), text.missing(2)) == (2, [5, 6])


def test_an_empty_text_misses_nothing() -> None:
    assert (len(Text(10, num_first=1)), Text(10, num_first=1).missing(3)) == (0, [])
