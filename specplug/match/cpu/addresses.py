"""The kernels of `steps` for tensors, by address: creating numpy views of a dozen tensors would take longer than them.

A tensor must be in host memory, have the stated element type and a contiguous last dimension, and live until the call
returns; `specplug.match.cpu.lookup` ensures that.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.pointers import float32_at, int32_at, int64_at
from specplug.match.cpu.records import borrowed
from specplug.match.cpu.steps import ingest, propose_chains, propose_trees


@compiled
def ingest_at(
    state: Any,
    batch_size: int,
    slots: int,
    table: int,
    num_rows: int,
    stride: int,
    table_rows: int,
    first: int,
    lengths: int,
    num_new: int,
) -> None:
    """Run `steps.ingest` on addresses; `table` has `num_rows` rows, `stride` elements apart; `first` may be 0."""
    ingest(
        borrowed(state),
        carray(int64_at(slots), batch_size),
        carray(int32_at(table), (num_rows, stride)),
        carray(int64_at(table_rows), batch_size),
        carray(int32_at(first), batch_size if first else 0),
        carray(int32_at(lengths), batch_size),
        carray(int32_at(num_new), batch_size),
    )


@compiled
def propose_at(
    state: Any,
    batch_size: int,
    slots: int,
    limits: int,
    ids: int,
    confidences: int,
    stride: int,
    counts: int,
    sources: int,
    parents: int,
) -> None:
    """Run `steps.propose_trees` on addresses, or `steps.propose_chains` if `parents` is 0.

    Rows of `ids`, `confidences`, `sources` and `parents` are `stride` elements apart.
    """
    state, grid = borrowed(state), (batch_size, stride)
    all_slots, all_limits = carray(int64_at(slots), batch_size), carray(int32_at(limits), batch_size)
    all_ids, all_confidences = carray(int32_at(ids), grid), carray(float32_at(confidences), grid)
    all_counts, all_sources = carray(int32_at(counts), batch_size), carray(int32_at(sources), grid)
    if parents:
        all_parents = carray(int32_at(parents), grid)
        propose_trees(state, all_slots, all_limits, all_ids, all_confidences, all_counts, all_sources, all_parents)
    else:
        propose_chains(state, all_slots, all_limits, all_ids, all_confidences, all_counts, all_sources)
