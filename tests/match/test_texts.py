"""Texts that grow in any pieces find the same, and slots do not touch each other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.errors import ContractError
from specplug.match.cpu.texts import MOST_CANDIDATES, Texts, Tokens
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


@given(st.integers(0, 2**32), st.integers(0, 150), st.integers(0, 150), st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_what_is_taken_back_never_was(seed: int, kept: int, taken: int, more: int) -> None:
    text = some_text(seed, kept + taken + more)
    texts = Texts(2, CAPACITY, CAP)
    texts.extend(0, text[: kept + taken])
    texts.truncate(0, kept + taken + 5)  # nothing to take back
    assert texts.lengths[0] == kept + taken
    texts.truncate(0, kept)
    assert found(texts, 0) == expected(text[:kept])
    texts.extend(0, text[kept + taken :])
    text = text[:kept] + text[kept + taken :]
    assert texts.text[0, : len(text)].tolist() == text
    assert found(texts, 0) == (expected(text) if text else [])


def test_a_long_text_finds_all_while_its_trees_multiply() -> None:
    text = some_text(4, CAPACITY)
    texts = Texts(2, CAPACITY, CAP)
    trees = {texts.num_bytes(0)}
    for at in range(0, CAPACITY, 50):
        texts.extend(0, text[at : at + 50])
        assert found(texts, 0) == expected(text[: at + 50])
        trees.add(texts.num_bytes(0) - 12 * (at + 50))
    assert len(trees) == 2
    texts.clear(0)
    assert texts.lengths[0] == 0
    assert found(texts, 0) == []
    assert texts.num_bytes(0) in trees
    texts.extend(0, [7, 7])
    assert found(texts, 0) == [(1, 1)]


def test_what_is_too_long_is_refused_and_nothing_is_appended() -> None:
    texts = Texts(1, 10, CAP)
    texts.extend(0, [1, 2, 1, 2])
    before = found(texts, 0)
    with pytest.raises(ContractError, match=r"text too long[\s\S]*11[\s\S]*at most 10"):
        texts.extend(0, [5] * 7)
    assert texts.lengths[0] == 4
    assert found(texts, 0) == before
    assert not (texts.text == 5).any()
    texts.extend(0, [1, 2, 1, 2, 1, 2])
    assert texts.lengths[0] == 10
    assert found(texts, 0) == expected([1, 2] * 5)


@pytest.mark.parametrize("n", [1024, 8192, 32768])
@pytest.mark.parametrize("text", [np.random.default_rng(0).integers(0, 99999, 32768), np.arange(32768) % 7])
def test_a_token_takes_at_most_16_bytes(n: int, text: Tokens) -> None:
    texts = Texts(1, 32768, 64)
    texts.extend(0, text[:n])
    assert texts.num_bytes(0) <= 16 * n
    arrays = (texts.text, texts._children, texts._heads)
    assert sum(array.nbytes for array in arrays) <= 16.1 * 32768
    assert texts.num_bytes(0) > 12 * n
