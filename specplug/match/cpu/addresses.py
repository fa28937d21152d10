"""The kernels of `steps` for tensors, by address: creating numpy views of a dozen tensors would take longer than them.

A tensor must be in host memory, have the stated element type and a contiguous last dimension, and live until the call
returns; `specplug.match.cpu.lookup` ensures that.  Large batches are shared with the threads of the state's pool.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled, inlined
from specplug.match.cpu.parallel import ARGUMENTS, DRAFT, EXTEND, run
from specplug.match.cpu.pointers import int32_at, int64_at
from specplug.match.cpu.records import address_of, borrowed
from specplug.match.cpu.steps import learn_from


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
    ingest(borrowed(state), batch_size, slots, table, num_rows, stride, table_rows, first, lengths, num_new)


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
    propose(borrowed(state), batch_size, slots, limits, ids, confidences, stride, counts, sources, parents)


@compiled
def address(state: Any) -> int:
    """Return the address at which kernels find a state, which its owner keeps alive."""
    return address_of(borrowed(state))  # type: ignore[no-any-return]


@inlined
def ingest(
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
    """Run `ingest_at` on a borrowed state.  Rows learn one after another, in this thread."""
    learn_from(
        state,
        carray(int64_at(slots), batch_size),
        carray(int32_at(table), (num_rows, stride)),
        carray(int64_at(table_rows), batch_size),
        carray(int32_at(first), batch_size if first else 0),
        carray(int32_at(lengths), batch_size),
        carray(int32_at(num_new), batch_size),
    )
    _set_arguments(state.pool.job, slots, table, num_rows, stride, table_rows, first, lengths, num_new)
    run(state, EXTEND, batch_size)


@inlined
def propose(
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
    """Run `propose_at` on a borrowed state."""
    _set_arguments(state.pool.job, slots, limits, ids, confidences, stride, counts, sources, parents)
    run(state, DRAFT, batch_size)


@inlined
def _set_arguments(job: Any, a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int) -> None:
    job[ARGUMENTS], job[ARGUMENTS + 1], job[ARGUMENTS + 2], job[ARGUMENTS + 3] = a, b, c, d
    job[ARGUMENTS + 4], job[ARGUMENTS + 5], job[ARGUMENTS + 6], job[ARGUMENTS + 7] = e, f, g, h
