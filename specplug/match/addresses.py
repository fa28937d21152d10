"""The kernels of `steps` for tensors, by address: making numpy views of a dozen tensors takes longer than the rest.

A tensor's memory must be the host's, its elements of the type that is stated, the last dimension contiguous, and it
must live until the call returns; `specplug.match.lookup` sees to that.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]
from numba.core import types
from numba.extending import intrinsic

from specplug.match.compiled import compiled
from specplug.match.records import lent
from specplug.match.steps import ingest, propose_chains, propose_trees


def _pointer_to(kind: Any) -> Any:
    """Return what turns an address into a pointer to elements of a numba type, inside kernels."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_typing: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate  # type: ignore[no-untyped-call]

    return pointer


_int32, _int64, _float32 = _pointer_to(types.int32), _pointer_to(types.int64), _pointer_to(types.float32)


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
    """Do as `steps.ingest` for addresses; `table` has `num_rows` rows, `stride` elements apart; `first` may be 0."""
    ingest(
        lent(state),
        carray(_int64(slots), batch_size),
        carray(_int32(table), (num_rows, stride)),
        carray(_int64(table_rows), batch_size),
        carray(_int32(first), batch_size if first else 0),
        carray(_int32(lengths), batch_size),
        carray(_int32(num_new), batch_size),
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
    """Do as `steps.propose_trees` for addresses, or as `steps.propose_chains` where `parents` is 0.

    Rows of `ids`, `confidences` and `parents` are `stride` elements apart.
    """
    state, grid = lent(state), (batch_size, stride)
    all_slots, all_limits = carray(_int64(slots), batch_size), carray(_int32(limits), batch_size)
    all_ids, all_confidences = carray(_int32(ids), grid), carray(_float32(confidences), grid)
    all_counts, all_sources = carray(_int32(counts), batch_size), carray(_int32(sources), batch_size)
    if parents:
        all_parents = carray(_int32(parents), grid)
        propose_trees(state, all_slots, all_limits, all_ids, all_confidences, all_counts, all_sources, all_parents)
    else:
        propose_chains(state, all_slots, all_limits, all_ids, all_confidences, all_counts, all_sources)
