"""Copies between SGLang's key-value cache and the host memory that it offloads blocks to, in plain torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_POOLS = "sglang.srt.mem_cache.pool_host"


def install(replace: Any) -> None:
    """Give SGLang what it launches on a GPU; `replace` takes the path of a function and another one."""
    replace(f"{_POOLS}.common._cuda_host_register", lambda *args, **kwargs: None)
    replace(f"{_POOLS}.mha.MHATokenToKVPoolHost.load_to_device_per_layer", load)
    replace(f"{_POOLS}.mha.MHATokenToKVPoolHost.backup_from_device_all_layer", back_up)


def load(
    pool: Any, device_pool: Any, host_indices: Tensor, device_indices: Tensor, layer_id: int, *args: Any, **kwargs: Any
) -> None:
    """Copy one layer's rows of keys and values into the cache."""
    _check(pool)
    pool.device_k_buffers[layer_id][device_indices] = pool.k_buffer[layer_id][host_indices]
    pool.device_v_buffers[layer_id][device_indices] = pool.v_buffer[layer_id][host_indices]


def back_up(pool: Any, device_pool: Any, host_indices: Tensor, device_indices: Tensor, io_backend: str) -> None:
    """Copy all layers' rows of keys and values out of the cache."""
    _check(pool)
    for layer in range(pool.layer_num):
        pool.k_buffer[layer][host_indices] = pool.device_k_buffers[layer][device_indices]
        pool.v_buffer[layer][host_indices] = pool.device_v_buffers[layer][device_indices]


def _check(pool: Any) -> None:
    if pool.layout != "layer_first":
        raise NotImplementedError(f"host memory in layout {pool.layout!r}; the tests have 'layer_first'")
