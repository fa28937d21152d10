"""The texts of running requests, one per slot, each with its own recency tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.recency import allow_visits, insert
from specplug.match.cpu.records import Record, record

Tokens = npt.NDArray[np.int32]

NO_TEXT = -1
"""Id of tokens that are not text, and the separator of texts; it matches nothing."""

MOST_CANDIDATES = 16
"""The most candidates per slot: those with the longest matches are kept, the oldest among ties."""

_FEWEST_TREES, _PLACES_PER_TREE = 64, 8


class Texts:
    """S texts that grow, at most C tokens each, and the earlier places that match their ends.

    A token takes 12 bytes and its share of the trees' roots, at most 4 more.  Memory is reserved for S texts of C
    tokens and is used as they grow.

    Attributes:
        text: [S, C] int32.
        lengths: [S] int32, tokens so far.
        places, match_lengths: [S, `MOST_CANDIDATES`] int32, the candidates for what follows each text, newest first.
        candidates: [S] int32, the number of candidates.
        record: the record that kernels take.
    """

    def __init__(self, max_slots: int, capacity: int, cap: int) -> None:
        """Reserve memory.  `cap`: the most tokens that are compared for a match."""
        self.capacity, self.cap = capacity, cap
        most_trees = _FEWEST_TREES
        while most_trees * _PLACES_PER_TREE < capacity:
            most_trees *= 2
        self.text = np.zeros((max_slots, capacity), np.int32)
        self.lengths = np.zeros(max_slots, np.int32)
        self.places = np.zeros((max_slots, MOST_CANDIDATES), np.int32)
        self.match_lengths = np.zeros_like(self.places)
        self.candidates = np.zeros(max_slots, np.int32)
        self._trees = np.full(max_slots, _FEWEST_TREES, np.int32)
        self._children = np.zeros((max_slots, 2 * (capacity + 1)), np.int32)
        self._heads = np.zeros((max_slots, most_trees), np.int32)
        self.record = self.view()

    def view(self) -> Record:
        """Return a record of these texts with its own scratch memory, for kernels on another thread."""
        return record(
            text=self.text,
            children=self._children,
            heads=self._heads,
            trees=self._trees,
            lengths=self.lengths,
            places=self.places,
            match_lengths=self.match_lengths,
            candidates=self.candidates,
            empty=np.zeros(0, np.int32),
            budget=np.zeros(1, np.int64),
        )

    def clear(self, slot: int) -> None:
        """Forget a slot's text."""
        clear(self.record, slot)

    def extend(self, slot: int, tokens: Tokens | Sequence[int]) -> None:
        """Append tokens to a slot's text, which has room for them."""
        extend(self.record, slot, np.ascontiguousarray(tokens, dtype=np.int32), self.cap)

    def reserve(self, slot: int, length: int) -> None:
        """Give a slot the trees that a text of `length` tokens needs, so that growing to it never rebuilds them."""
        reserve(self.record, slot, min(length, self.capacity), self.cap)


@compiled
def clear(texts: Any, slot: int) -> None:
    """Forget a slot's text."""
    texts.heads[slot, : texts.trees[slot]] = 0
    texts.trees[slot] = _FEWEST_TREES
    texts.lengths[slot] = 0
    texts.candidates[slot] = 0


@compiled
def extend(texts: Any, slot: int, tokens: Any, cap: int) -> None:
    """Append tokens [n] int32, for which there is room, and find the candidates for what follows the last of them."""
    text, start = texts.text[slot], texts.lengths[slot]
    stop = start + tokens.size
    for k in range(tokens.size):
        text[start + k] = tokens[k]
    texts.lengths[slot] = stop
    if stop > _PLACES_PER_TREE * texts.trees[slot] and texts.trees[slot] < texts.heads.shape[1]:
        replant(texts, slot, cap)
    else:
        _plant(texts, slot, start + 1, cap)


@compiled
def reserve(texts: Any, slot: int, length: int, cap: int) -> None:
    """Give a slot the trees that a text of `length` tokens needs."""
    needed = texts.trees[slot]
    while length > _PLACES_PER_TREE * needed and needed < texts.heads.shape[1]:
        needed *= 2
    if needed > texts.trees[slot]:
        texts.heads[slot, : texts.trees[slot]] = 0
        texts.trees[slot] = needed
        _plant(texts, slot, 1, cap)


@compiled
def replant(texts: Any, slot: int, cap: int) -> None:
    """Rebuild the trees of a slot, as many as its length requires."""
    texts.heads[slot, : texts.trees[slot]] = 0
    texts.candidates[slot] = 0
    while texts.lengths[slot] > _PLACES_PER_TREE // 2 * texts.trees[slot] and texts.trees[slot] < texts.heads.shape[1]:
        texts.trees[slot] *= 2
    _plant(texts, slot, 1, cap)


@compiled
def _plant(texts: Any, slot: int, first: int, cap: int) -> None:
    """Add the places from `first` to the end of the text."""
    text, children = texts.text[slot], texts.children[slot]
    heads = texts.heads[slot, : texts.trees[slot]]
    places, lengths = texts.places[slot], texts.match_lengths[slot]
    empty, budget, stop, found = texts.empty, texts.budget, texts.lengths[slot], texts.candidates[slot]
    allow_visits(budget, stop + 1 - first)
    for place in range(first, stop + 1):
        found = 0
        if text[place - 1] < 0:
            continue
        if place < stop:  # only the candidates at the end of the text are ever used
            insert(text, -1, 0, empty, heads, children, place, cap, empty, empty, budget)
        else:
            found = insert(text, -1, 0, empty, heads, children, place, cap, places, lengths, budget)
    texts.candidates[slot] = found
