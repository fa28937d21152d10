"""The mapping of requests' positions to slots of the KV cache.

`req_to_token` is [requests, pool_len] int32: the slot of each position of each request.  Requests are named by their
row in it, `req_pool_indices` [bs]; of each, positions `start_offset[b]` up to `end_offset[b]` [bs] are meant.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the slots `out_cache_loc` [sum of lengths] int64 into `req_to_token`, request after request."""
    for row, positions, packed in _ranges(req_pool_indices, start_offset, end_offset):
        req_to_token[row, positions] = out_cache_loc[packed].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read slots from `req_to_token` into `out_cache_loc` [at least the sum of lengths] int64, packed likewise."""
    for row, positions, packed in _ranges(req_pool_indices, start_offset, end_offset):
        out_cache_loc[packed] = req_to_token[row, positions].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """Read the `topk * num_cols` slots from position `seq_lens[b]` on into `out_cache_loc`, request after request."""
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_cols, out_cache_loc, pool_len
    )


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Gather the slots of accepted tokens to the front of `accept_out_cache_loc`.

    Args:
        accept_index: int32 of any shape, places in `out_cache_loc`; -1 is no token.
        out_cache_loc: [bs * drafts] int64.
        accept_out_cache_loc: [at least the number of accepted tokens] int64; the rest of it is left alone.
    """
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def _ranges(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Yield each request's row, its positions, and where they lie when all requests' are packed."""
    packed = 0
    for row, start, end in torch.stack([rows.long(), starts.long(), ends.long()], dim=1).tolist():
        yield row, slice(start, end), slice(packed, packed + end - start)
        packed += end - start
