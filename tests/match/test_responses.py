"""The response memory finds everything that is still in its ring, and never another owner's responses."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu import responses as kernels
from specplug.match.cpu.recency import search
from specplug.match.cpu.records import record
from specplug.match.cpu.responses import FEW_OWNERS, Responses
from specplug.match.cpu.texts import MOST_CANDIDATES, NO_TEXT
from tests.match.reference import responses
from tests.match.reference.recency import candidates, kept, key_of
from tests.match.reference.responses import Memory

Found = list[tuple[int, int]]


class Both:
    """A response memory and its plain reference."""

    def __init__(self, capacity: int, cap: int) -> None:
        self.fast, self.cap = Responses(capacity, cap), cap
        self.plain = Memory(self.fast.capacity)

    def add(self, owner: int, context: list[int], response: list[int]) -> None:
        self.fast.add(owner, np.array(context, np.int32), np.array(response, np.int32))
        self.plain.add(owner, context[-self.cap :], response)

    def found(self, owner: int, context: list[int]) -> Found:
        """Return what the memory finds, and check that it is what the reference finds."""
        memory, size = self.fast, self.fast.capacity
        places, lengths = np.zeros(MOST_CANDIDATES, np.int32), np.zeros(MOST_CANDIDATES, np.int32)
        end = int(memory._ends[0])
        assert end == self.plain.end
        n = search(
            memory.text, size - 1, max(end + 1 - size, 0), memory.owners, memory._heads, memory.children, owner,
            np.array(context, np.int32), len(context), self.cap, places, lengths,
        ) if end else 0  # fmt: skip
        got: Found = list(zip(places[:n].tolist(), lengths[:n].tolist(), strict=True))
        key = key_of(context, len(context), self.cap)
        places_of_owner = self.plain.places_of(owner, self.cap)
        want = kept(candidates(self.plain.text, places_of_owner, key, self.cap), MOST_CANDIDATES)
        assert got == [tuple(candidate) for candidate in want]
        assert all(self.plain.owners[place] == owner for place, _ in got)
        assert [int(memory.text[place & (size - 1)]) for place, _ in got] == [self.plain.text[p] for p, _ in got]
        return got


def crowd(memory: Responses) -> None:
    """Let all keys of all owners share one tree."""
    memory._heads = memory._heads[:1]
    memory.record = record(
        text=memory.text,
        children=memory.children,
        heads=memory._heads,
        owners=memory.owners,
        ends=memory._ends,
        **{name: np.zeros(MOST_CANDIDATES, np.int32) for name in ("places", "match_lengths")},
        budget=np.zeros(1, np.int64),
        flag=memory.flag,
    )


@pytest.mark.parametrize("places", [kernels.MOST_PLACES, 2000])
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 16, 40]), st.sampled_from([1, 2, 5, 1000]))
@settings(max_examples=10)
def test_it_finds_what_is_in_the_ring_for_the_owner(places: int, seed: int, cap: int, alphabet: int) -> None:
    """Also after it was cleared, or has begun anew because places run out."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels, responses):
            patch.setattr(module, "MOST_PLACES", places)
        ends = play(random.Random(seed), Both(256, cap), alphabet, in_one_tree=bool(seed % 2))
    assert max(ends) <= places
    assert any(one > other for one, other in itertools.pairwise(ends)) or places > 2000


def play(rng: random.Random, both: Both, alphabet: int, *, in_one_tree: bool) -> list[int]:
    """Add random responses, and compare what is found; return where they ended."""
    ends = []
    if in_one_tree:
        crowd(both.fast)
    tokens: list[list[int]] = [[0]]
    for _ in range(60):  # many times around
        song = rng.choice(tokens)
        fresh = [rng.randrange(alphabet) for _ in range(rng.choice([1, 2, 16, 17, 90, 700]))]
        for place in rng.sample(range(len(fresh)), len(fresh) // 16):
            fresh[place] = NO_TEXT
        tokens.append((fresh if rng.random() < 0.5 else [*song, *fresh])[-700:])
        both.add(rng.randrange(1, 4), song[: rng.randrange(9)], tokens[-1])
        for owner in (1, 2, 3, 4):
            context = (rng.choice(tokens[-9:]))[: rng.randrange(1, 99)]
            both.found(owner, context)
        ends.append(both.plain.end)
        if rng.random() < 0.02:
            both.fast.clear()
            both.plain = Memory(both.fast.capacity)
    return ends


def test_a_granule_that_changed_hands_tells_nothing_of_the_owner_before() -> None:
    both = Both(256, 1)
    for start in range(40):  # whatever place the ring's end takes within a granule
        both.add(1, [], [100 + start % 50 + k for k in range(37)])
        both.add(2, [], [7] * (start % 17 + 1))
        for token in range(100 + start % 9, 190, 9):
            both.found(2, [token])
            both.found(1, [token])


def test_the_context_is_matched_and_never_drafted() -> None:
    both = Both(1024, 8)
    both.add(1, [1, 2, 3], [4, 5])
    assert both.found(1, [2]) == both.found(1, [3]) == []
    assert [n for _, n in both.found(1, [1, 2, 3, 4])] == [4]
    assert both.found(1, [5]) == []  # nothing came after


def test_owners_of_nothing_are_forgotten():
    memory = Responses(256, 4)
    memory.add(memory.owner("first"), np.zeros(0, np.int32), np.arange(9, dtype=np.int32))
    first, numbers = memory.owner("first"), {memory.owner("first")}
    for index in range(3 * FEW_OWNERS):
        numbers.add(memory.owner(f"salt {index}"))
    assert len(numbers) == 3 * FEW_OWNERS + 1  # no number twice
    assert len(memory._owners) <= FEW_OWNERS
    assert memory.owner("first") == first
