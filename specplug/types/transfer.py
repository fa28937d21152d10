"""Transfers of several tensors between a device and the host in one copy, because each copy to the host is a wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors of one device in host memory, made in one transfer, which waits for the device."""
    return _unpack(_pack(tensors).to("cpu"), tensors)


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return copies of tensors of the host on a device, made in one transfer, which nothing waits for."""
    packed = _pack(tensors)
    if device.type == "cuda":
        packed = packed.pin_memory()
    return _unpack(packed.to(device, non_blocking=True), tensors)


def _pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bits of bool, 4-byte and 8-byte tensors as one [n] int32; 8 bytes come first, so they are aligned."""
    flat = [(it.int() if it.dtype is torch.bool else it.contiguous()).reshape(-1) for it in _in_order(tensors)]
    # A single element counts as contiguous whatever its stride, but `view` needs a stride of 1.
    return torch.cat([it.as_strided(it.shape, (1,)).view(torch.int32) for it in flat])


def _unpack(packed: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    start = 0
    for it in _in_order(tensors):
        size = it.numel() * (2 if it.element_size() == 8 else 1)
        bits = packed[start : start + size]
        found[id(it)] = (bits != 0 if it.dtype is torch.bool else bits.view(it.dtype)).reshape(it.shape)
        start += size
    return [found[id(it)] for it in tensors]


def _in_order(tensors: Sequence[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda it: -it.element_size())
