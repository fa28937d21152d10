"""Moving rows of the KV cache, which SGLang names by address."""

from __future__ import annotations

import ctypes

from torch import Tensor


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy rows within each of several buffers, as if all were read before any is written.

    Args:
        data_ptrs: [buffers] uint64, addresses: keys and values of every layer.
        strides: [buffers], bytes per row.
        tgt_loc: [n], rows that are written.
        src_loc: [n], rows that they are copied from.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * size, size) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * size, row, size)
