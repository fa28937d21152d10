"""Texts that grow in any pieces find the same, and slots do not touch each other."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu.texts import MOST_CANDIDATES, Texts
from tests.match.reference.recency import candidates, kept, key_of

CAPACITY, CAP = 1500, 12


def found(texts: Texts, slot: int) -> list[tuple[int, int]]:
    """Return a slot's candidates."""
    n = texts.candidates[slot]
    return list(zip(texts.places[slot, :n].tolist(), texts.match_lengths[slot, :n].tolist(), strict=True))


def expected(text: list[int]) -> list[tuple[int, int]]:
    """Return what the plain reference finds."""
    places = [p for p in range(1, len(text)) if text[p - 1] >= 0]
    found = candidates(text, places, key_of(text, len(text), CAP), CAP)
    return [tuple(candidate) for candidate in kept(found, MOST_CANDIDATES)]


def some_text(seed: int, n: int) -> list[int]:
    """Return tokens at random, of a small alphabet, with barriers."""
    rng = random.Random(seed)
    alphabet = rng.choice([1, 2, 5, 50])
    return [-1 if rng.random() < 0.02 else rng.randrange(alphabet) for _ in range(n)]


def in_pieces(texts: Texts, slot: int, text: list[int], seed: int) -> None:
    """Append a text in pieces of any size, none at all among them."""
    rng, at = random.Random(seed), 0
    while at < len(text):
        n = rng.choice([0, 1, 2, 7, 100])
        texts.extend(slot, text[at : at + n])
        at += n


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_pieces_do_not_matter(seed: int, n: int, other: int) -> None:
    texts, text = Texts(3, CAPACITY, CAP), some_text(seed, n)
    texts.extend(0, text)
    in_pieces(texts, 2, text, other)
    assert texts.text[2, :n].tolist() == text
    assert texts.lengths.tolist() == [n, 0, n]
    assert found(texts, 0) == found(texts, 2) == expected(text)
    assert not texts.text[1].any()
    assert texts.candidates[1] == 0


def test_a_long_text_finds_all_while_its_trees_multiply() -> None:
    text = some_text(4, CAPACITY)
    texts = Texts(2, CAPACITY, CAP)
    trees = {int(texts._trees[0])}
    for at in range(0, CAPACITY, 50):
        texts.extend(0, text[at : at + 50])
        assert found(texts, 0) == expected(text[: at + 50])
        trees.add(int(texts._trees[0]))
    assert len(trees) == 2
    texts.clear(0)
    assert texts.lengths[0] == 0
    assert found(texts, 0) == []
    texts.extend(0, [7, 7])
    assert found(texts, 0) == [(1, 1)]


def test_a_token_takes_at_most_16_bytes() -> None:
    texts = Texts(1, 32768, 64)
    assert sum(array.nbytes for array in (texts.text, texts._children, texts._heads)) <= 16.1 * 32768
