"""Interleaved searches of a batch's rows: while one search waits for memory, the others compare.

A search in a large segment takes two dozen steps, each of which misses the cache twice: for the place in the middle,
and for the text before it.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.corpus_index import TOKEN
from specplug.match.cpu.pointers import int32_at, prefetch
from specplug.match.cpu.searching import halved, place_at


@compiled
def find_points(state: Any, slots: Any, limits: Any) -> None:
    """Store the insertion points of the texts in `slots` [B] int64, in the first segments of their tenants.

    Args:
        limits: [B] int32; rows with 0 need no draft.
    """
    texts, rows, corpus_index = state.texts, state.rows, state.corpus_index
    if corpus_index.texts.size == 0:
        return
    for rank in range(rows.points.shape[1]):
        row = 0
        while row < slots.size:
            cursors = 0
            while row < slots.size and cursors < len(corpus_index.cursors):
                slot, tenant = slots[row], rows.tenants[slots[row]]
                rows.points[slot, rank] = -1
                if limits[row] > 0 and 0 < tenant < corpus_index.first.size - 1 and texts.lengths[slot] > 0:
                    segment = corpus_index.first[tenant] + rank
                    if segment < corpus_index.first[tenant + 1]:
                        _enter(corpus_index, cursors, slot, segment)
                        cursors += 1
                row += 1
            _search(state, cursors)
            for cursor in range(cursors):
                rows.points[corpus_index.cursors[cursor, 0], rank] = corpus_index.cursors[cursor, 2]


@compiled
def _enter(corpus_index: Any, cursor: int, slot: int, segment: int) -> None:
    cursors = corpus_index.cursors
    cursors[cursor, 0], cursors[cursor, 1], cursors[cursor, 2], cursors[cursor, 3] = (
        slot,
        segment,
        0,
        corpus_index.counts[segment],
    )
    cursors[cursor, 4] = cursors[cursor, 5] = 0


@compiled
def _search(state: Any, count: int) -> None:
    """Run all searches to their ends, one step of each in turn."""
    texts, corpus_index = state.texts, state.corpus_index
    cursors, num_running = corpus_index.cursors, count
    while num_running:
        for cursor in range(count):
            low, high = cursors[cursor, 2], cursors[cursor, 3]
            if low < high:  # the previous turn prefetched the place
                segment = cursors[cursor, 1]
                text = carray(int32_at(corpus_index.texts[segment] * TOKEN), corpus_index.lengths[segment])
                prefetch(
                    text,
                    place_at(corpus_index, segment, (low + high) // 2)
                    - 1
                    - min(cursors[cursor, 4], cursors[cursor, 5]),
                )
        num_running = 0
        for cursor in range(count):
            low, high = cursors[cursor, 2], cursors[cursor, 3]
            if low < high:
                slot, segment = cursors[cursor, 0], cursors[cursor, 1]
                context, end = texts.text[slot], texts.lengths[slot]
                low, high, below, above = halved(
                    corpus_index, segment, context, end, state.max_n, low, high, cursors[cursor, 4], cursors[cursor, 5]
                )
                cursors[cursor, 2], cursors[cursor, 3], cursors[cursor, 4], cursors[cursor, 5] = low, high, below, above
                num_running += low < high
                prefetch(
                    carray(int32_at(corpus_index.places[segment]), corpus_index.counts[segment]), (low + high) // 2
                )
