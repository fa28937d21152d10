"""The recency tree finds what its plain reference finds, and the longest match."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu import recency
from specplug.match.cpu.texts import MOST_CANDIDATES, Texts
from tests.match.reference.recency import candidates, kept, key_of, longest

Found = list[tuple[int, int]]


class Tree:
    """A text and its trees, with poison after their contents."""

    def __init__(self, text: list[int], trees: int, cap: int, kept: int = 64) -> None:
        self.text, self.cap = np.array(text + [99] * 4, np.int32), cap
        self.heads, self.children = np.zeros(trees, np.int32), np.full(2 * (len(text) + 5), 77, np.int32)
        self.empty = np.zeros(0, np.int32)
        self.places, self.lengths = np.zeros(kept, np.int32), np.zeros(kept, np.int32)
        self.budget = np.full(1, 1 << 40, np.int64)

    def insert(self, place: int) -> Found:
        n = recency.insert(
            self.text, -1, 0, self.empty, self.heads, self.children, place, self.cap, self.places, self.lengths,
            self.budget,
        )  # fmt: skip
        return list(zip(self.places[:n].tolist(), self.lengths[:n].tolist(), strict=True))

    def search(self, context: list[int]) -> Found:
        n = recency.search(
            self.text, -1, 0, self.empty, self.heads, self.children, 0, np.array(context, np.int32), len(context),
            self.cap, self.places, self.lengths,
        )  # fmt: skip
        return list(zip(self.places[:n].tolist(), self.lengths[:n].tolist(), strict=True))


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Return tokens of a tiny alphabet, with barriers."""
    rng, alphabet = random.Random(draw(st.integers(0, 2**32))), draw(st.sampled_from([1, 2, 3, 8]))
    n = draw(st.integers(1, 60))
    return [rng.choice([-1, -2]) if rng.random() < 0.05 else rng.randrange(alphabet) for _ in range(n)]


@given(texts(), st.sampled_from([1, 2, 8, 64]), st.sampled_from([1, 2, 3, 5, 64]), st.data())
@settings(max_examples=150)
def test_it_finds_the_reference_s_candidates(text: list[int], trees: int, cap: int, data: st.DataObject) -> None:
    tree = Tree(text, trees, cap)
    added: list[int] = []
    for place in range(1, len(text) + 1):
        if text[place - 1] < 0:
            continue
        key, got = key_of(text, place, cap), tree.insert(place)
        assert got == candidates(text, added, key, cap)
        assert max((n for _, n in got), default=0) == longest(text, added, key, cap)
        added.append(place)
    for context in data.draw(st.lists(st.lists(st.integers(-1, 7), min_size=1, max_size=7), max_size=5)):
        key, got = key_of(context, len(context), cap), tree.search(context)
        assert got == candidates(text, added, key, cap)
        assert max((n for _, n in got), default=0) == longest(text, added, key, cap)


@given(st.integers(0, 2**32), st.integers(0, 40), st.sampled_from([1, 3, 16]))
@settings(max_examples=100)
def test_older_short_matches_do_not_evict_the_longest(seed: int, run: int, entries: int) -> None:
    rng = random.Random(seed)
    phrase = [rng.randrange(60) for _ in range(rng.randrange(2, 30))]
    common = rng.choice(phrase)
    repeated = phrase[: rng.choice([n for n, token in enumerate(phrase, 1) if token == common])]
    text = [61, *[common] * run, rng.randrange(60), *phrase, 62, *repeated]
    tree = Tree(text, 64, 64, kept=entries)
    for place in range(1, len(text)):
        tree.insert(place)
    earlier, key = list(range(1, len(text))), key_of(text, len(text), 64)
    want = kept(candidates(text, earlier, key, 64), entries)
    assert tree.search(text) == want
    assert tree.insert(len(text)) == want
    assert max(length for _, length in want) == longest(text, earlier, key, 64) >= len(repeated)


def test_a_walk_ends_also_in_a_text_made_to_lead_it_deep() -> None:
    deep = recency.MOST_VISITS * 3
    text = [token for n in range(deep) for token in (n, deep)]  # each key is above all before: one long spine
    tree = Tree(text, 1, 8, kept=8)
    for place in range(2, len(text) + 1, 2):
        tree.insert(place)
    assert len(tree.search([0, deep])) == 8
    last = len(text)
    spine = [last]
    while tree.children[2 * spine[-1]]:
        spine.append(int(tree.children[2 * spine[-1]]))
    assert deep >= len(spine) >= recency.MOST_VISITS


def hostile(count: int) -> list[int]:
    """Return runs of one token after increasing tokens, so that each walk visits all runs."""
    return [token for number in range(count) for token in (1000 + number, *[5] * 63)]


def test_a_text_made_for_deep_walks_does_not_get_all_the_visits_it_asks_for() -> None:
    text = hostile(200)
    unbounded, bounded = Tree(text, 64, 64), Tree(text, 64, 64)
    recency.allow_visits(bounded.budget, len(text))
    allowed, before = int(bounded.budget[0]), int(unbounded.budget[0])
    for place in range(1, len(text) + 1):
        unbounded.insert(place)
        bounded.insert(place)
    assert before - int(unbounded.budget[0]) > 3 * allowed
    assert allowed - int(bounded.budget[0]) <= allowed + recency.FEWEST_VISITS * len(text)


def test_what_a_text_made_for_deep_walks_holds_beside_them_is_found() -> None:
    phrase = [*range(100, 140)]
    text = [*hostile(500), *phrase, 7, *phrase[:22]]
    texts = Texts(1, len(text), 64)
    texts.extend(0, text)
    assert texts.match_lengths[0, : texts.candidates[0]].max() == 22


def test_other_owners_are_other_texts() -> None:
    sizes = {recency.bucket(token, owner, 1 << 20) for token in range(30) for owner in range(30)}
    assert len(sizes) > 880  # spread, and told apart
    assert recency.bucket(5, 1, 1) == 0


def test_a_long_text_finds_all_while_its_trees_multiply() -> None:
    capacity, cap, rng = 1500, 12, random.Random(4)
    text = [-1 if rng.random() < 0.02 else rng.randrange(5) for _ in range(capacity)]
    texts, trees = Texts(2, capacity, cap), set()
    for end in range(50, capacity + 1, 50):
        texts.extend(0, text[end - 50 : end])
        n = texts.candidates[0]
        places = [p for p in range(1, end) if text[p - 1] >= 0]
        want = kept(candidates(text, places, key_of(text[:end], end, cap), cap), MOST_CANDIDATES)
        assert list(zip(texts.places[0, :n], texts.match_lengths[0, :n], strict=True)) == want
        trees.add(int(texts._trees[0]))
    assert len(trees) == 2
    texts.clear(0)
    assert (texts.lengths[0], texts.candidates[0]) == (0, 0)
    texts.extend(0, [7, 7])
    assert (texts.places[0, 0], texts.match_lengths[0, 0]) == (1, 1)


def test_a_token_takes_at_most_16_bytes() -> None:
    texts = Texts(1, 32768, 64)
    assert sum(array.nbytes for array in (texts.text, texts._children, texts._heads)) <= 16.1 * 32768
