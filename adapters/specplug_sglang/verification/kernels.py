"""Triton kernels of a step that verifies chains, one program per row; `trees` documents and defines them.

As in `specplug.steps.kernels.launches`, no argument that changes from step to step is specialised for, and a launch of
0 rows compiles a kernel and runs nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specplug.launching import Launcher
from specplug.types.step import Draft
from specplug_sglang.verification import trees
from specplug_sglang.verification.trees import Accepted, TokenTable, Verification


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["ids_stride", "table_stride", "places_stride", "nodes_stride", "n_count"],
    do_not_specialize_on_alignment=[
        *("ids", "lengths", "table", "slots", "before", "places"),
        *("nodes", "cached", "counts"),
    ],
)
def verification_kernel(  # type: ignore[no-untyped-def]
    ids,
    ids_stride,
    lengths,
    table,
    table_stride,
    slots,
    before,
    places,
    places_stride,
    nodes,
    nodes_stride,
    cached,
    counts,
    n_count,
    BLOCK: tl.constexpr,
):
    """Write what verifies one row's chain, n nodes; `nodes` are their tokens, positions, children and siblings."""
    row = tl.program_id(0).to(tl.int64)
    end = tl.load(before + row)
    length = tl.load(lengths + row)
    slot = tl.load(slots + row).to(tl.int64)
    last = tl.load(table + slot * table_stride + end).to(tl.int64)
    place = tl.arange(0, BLOCK)
    mask = place < n_count
    is_drafted = (place > 0) & (place <= length) & mask
    token = tl.load(ids + row * ids_stride + place - 1, mask=is_drafted, other=0).to(tl.int64)
    at = row * n_count + place
    tl.store(nodes + at, tl.where(is_drafted, token, last), mask=mask)
    tl.store(nodes + nodes_stride + at, end + tl.where(place <= length, place, 0), mask=mask)
    tl.store(nodes + nodes_stride * 2 + at, tl.where(place < length, place + 1, -1), mask=mask)
    tl.store(nodes + nodes_stride * 3 + at, tl.full([BLOCK], -1, tl.int64), mask=mask)
    where = tl.load(places + slot * places_stride + end + place, mask=mask, other=0)
    tl.store(cached + at, where.to(tl.int64), mask=mask)
    tl.store(counts + row, length + 1)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["table_stride", "table_columns_count", "n_count"],
    do_not_specialize_on_alignment=[
        *("predict", "accept_index", "accept_lens", "table", "slots", "before"),
        *("emitted", "new_seq_lens", "last"),
    ],
)
def append_kernel(  # type: ignore[no-untyped-def]
    predict,
    accept_index,
    accept_lens,
    table,
    table_stride,
    table_columns_count,
    slots,
    before,
    emitted,
    new_seq_lens,
    last,
    n_count,
    BLOCK: tl.constexpr,
):
    """Append one row's emitted tokens."""
    row = tl.program_id(0).to(tl.int64)
    cached = tl.load(before + row)
    count = tl.load(accept_lens + row)
    slot = tl.load(slots + row).to(tl.int64)
    place = tl.arange(0, BLOCK)
    index = tl.load(accept_index + row * n_count + place, mask=place < n_count, other=-1)
    token = tl.load(predict + index, mask=(place < count) & (index >= 0), other=0)
    tl.store(emitted + row * n_count + place, token, mask=place < n_count)
    position = cached + 1 + place
    is_kept = (place < count) & (position < table_columns_count)
    tl.store(table + slot * table_stride + position, token, mask=is_kept)
    tl.store(new_seq_lens + row, cached + count)
    tl.store(last + row, tl.load(predict + tl.load(accept_index + row * n_count + count - 1)))


_VERIFICATION = Launcher(verification_kernel, num_warps=1)
_APPEND = Launcher(append_kernel, num_warps=1)


def verification(draft: Draft, table: TokenTable, slots: Tensor, before: Tensor, places: Tensor) -> Verification:
    """Return what verifies a draft, like `trees.verification`; that of a chain by one kernel."""
    if draft.parents is not None:
        return trees.verification(draft, table, slots, before, places)
    rows = len(slots)
    n = draft.draft_length + 1
    cached = torch.empty(rows * n, dtype=torch.int64, device=slots.device)
    counts = torch.empty(rows, dtype=torch.int32, device=slots.device)
    _VERIFICATION(
        (rows, 1, 1),
        draft.token_ids,
        draft.token_ids.stride(0),
        draft.lengths.contiguous(),  # those from another rank are a column between ids
        table.tokens,
        table.tokens.stride(0),
        slots.contiguous(),
        before.contiguous(),
        places,
        places.stride(0),
        table.nodes,
        table.nodes.stride(0),
        cached,
        counts,
        n,
        types=(slots.dtype, before.dtype),
        BLOCK=table.block,
    )
    return Verification(table.chains(rows, n), cached, counts)


def append(
    table: TokenTable, slots: Tensor, before: Tensor, predict: Tensor, accept_index: Tensor, accept_lens: Tensor
) -> Accepted:
    """Append what verification accepted, by one kernel, like `trees.append`; emitted tokens beyond a count are 0."""
    rows, n = accept_index.shape
    emitted = torch.empty(rows * n, dtype=predict.dtype, device=predict.device)
    new_seq_lens = torch.empty_like(before)
    last = torch.empty(rows, dtype=torch.int32, device=predict.device)
    _APPEND(
        (rows, 1, 1),
        predict.contiguous(),
        accept_index.contiguous(),
        accept_lens.contiguous(),
        table.tokens,
        table.tokens.stride(0),
        table.tokens.shape[1],
        slots.contiguous(),
        before.contiguous(),
        emitted,
        new_seq_lens,
        last,
        n,
        types=(predict.dtype, accept_index.dtype, accept_lens.dtype, slots.dtype, before.dtype),
        BLOCK=table.block,
    )
    return Accepted(emitted, new_seq_lens, last)
