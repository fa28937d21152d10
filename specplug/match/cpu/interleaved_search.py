"""The rows of a batch searched side by side: while one waits for memory, the others are compared.

A search in a large segment is two dozen steps, each of which waits twice for memory that no cache holds: for the place
in the middle, and for the text before it.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.corpus_index import TOKEN
from specplug.match.cpu.pointers import int32_at
from specplug.match.cpu.prefetch import prefetch
from specplug.match.cpu.searching import halved, place_at


@compiled
def find_points(state: Any, slots: Any, limits: Any) -> None:
    """Note the insertion points of the texts in `slots` [B] int64, in the first segments of their tenants.

    Args:
        limits: [B] int32; rows with 0 are not to be drafted for.
    """
    texts, rows, shelf = state.texts, state.rows, state.shelf
    if shelf.texts.size == 0:
        return
    for rank in range(rows.points.shape[1]):
        row = 0
        while row < slots.size:
            lanes = 0
            while row < slots.size and lanes < len(shelf.lanes):
                slot, tenant = slots[row], rows.tenants[slots[row]]
                rows.points[slot, rank] = -1
                if limits[row] > 0 and 0 < tenant < shelf.first.size - 1 and texts.lengths[slot] > 0:
                    segment = shelf.first[tenant] + rank
                    if segment < shelf.first[tenant + 1]:
                        _enter(shelf, lanes, slot, segment)
                        lanes += 1
                row += 1
            _search(state, lanes)
            for lane in range(lanes):
                rows.points[shelf.lanes[lane, 0], rank] = shelf.lanes[lane, 2]


@compiled
def _enter(shelf: Any, lane: int, slot: int, segment: int) -> None:
    lanes = shelf.lanes
    lanes[lane, 0], lanes[lane, 1], lanes[lane, 2], lanes[lane, 3] = slot, segment, 0, shelf.counts[segment]
    lanes[lane, 4] = lanes[lane, 5] = 0


@compiled
def _search(state: Any, count: int) -> None:
    """Take all lanes to their ends, a step each in turn."""
    texts, shelf = state.texts, state.shelf
    lanes, going = shelf.lanes, count
    while going:
        for lane in range(count):
            low, high = lanes[lane, 2], lanes[lane, 3]
            if low < high:  # the place was asked for in the turn before
                segment = lanes[lane, 1]
                text = carray(int32_at(shelf.texts[segment] * TOKEN), shelf.lengths[segment])
                prefetch(text, place_at(shelf, segment, (low + high) // 2) - 1 - min(lanes[lane, 4], lanes[lane, 5]))
        going = 0
        for lane in range(count):
            low, high = lanes[lane, 2], lanes[lane, 3]
            if low < high:
                slot, segment = lanes[lane, 0], lanes[lane, 1]
                context, end = texts.text[slot], texts.lengths[slot]
                low, high, below, above = halved(
                    shelf, segment, context, end, state.cap, low, high, lanes[lane, 4], lanes[lane, 5]
                )
                lanes[lane, 2], lanes[lane, 3], lanes[lane, 4], lanes[lane, 5] = low, high, below, above
                going += low < high
                prefetch(carray(int32_at(shelf.places[segment]), shelf.counts[segment]), (low + high) // 2)
