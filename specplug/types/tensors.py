"""Tensors of records and batches: what each record holds, checks of shape and dtype, and transfers in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from specplug.errors import ContractError

T = TypeVar("T")

ANY = -1
"""A size that is not checked."""


def tensors_of(record: Any) -> dict[str, Tensor]:
    """Return the tensors of a dataclass such as a batch, a draft or a verdict, by attribute."""
    named = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}


def as_array(tensor: Tensor) -> Any:
    """Return a CPU's tensor as an array that shares its memory, other tensors as they are.

    Operations on small arrays take a third of the time of those on small tensors; many are written alike.
    """
    return tensor.numpy() if tensor.is_cpu else tensor


def as_tensor(array: Any) -> Tensor:
    """Undo `as_array`."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def library(tensor: Tensor) -> Any:
    """Return the module, numpy or torch, whose functions take what `as_array` returns."""
    return np if tensor.is_cpu else torch


def map_tensors(record: T, change: Callable[[Tensor], Tensor]) -> T:
    """Return a dataclass with `change` applied to each of its tensors."""
    return replace(record, **{name: change(tensor) for name, tensor in tensors_of(record).items()})  # type: ignore[type-var]


def check_tensor(
    name: str,
    tensor: Tensor | None,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...] = (),
    device: torch.device | None = None,
) -> None:
    """Raise `ContractError` if a tensor is missing or wrong.  Reads no values, so it is safe on a GPU.

    Args:
        name: the tensor's name in the error.
        tensor: the tensor; None is always an error.
        shape: the expected sizes; a size may be `ANY`.
        dtypes: the dtypes that are allowed; none given allows all.
        device: the expected device; None allows any.
    """
    if tensor is not None and tensor.shape == shape and tensor.dtype in dtypes and tensor.device == device:
        return  # as always but in error, and where a shape has `ANY`
    right = (
        tensor is not None
        and tensor.ndim == len(shape)
        and all(expected in (ANY, size) for size, expected in zip(tensor.shape, shape, strict=True))
        and (not dtypes or tensor.dtype in dtypes)
        and device in (None, tensor.device)
    )
    if not right:
        sizes = ", ".join("any" if size == ANY else str(size) for size in shape)
        kinds = " or ".join(map(str, dtypes)) or "of any dtype"
        raise ContractError.build(
            f"{name} is missing or malformed" if tensor is None else f"{name} is malformed",
            found=None if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}",
            expected=f"({sizes}) {kinds}" + ("" if device is None else f" on {device}"),
        )


def checksum(table: Tensor) -> Tensor:
    """Return [] int32, the sum of (2 i + 1) x_i over the entries x_i of a contiguous table of int32, modulo 2^32.

    No value changes alone without a change of the sum.  Sums by row and by column need no room for products.
    """
    size = table.numel()
    columns = max(1, min(size & -size, 1 << size.bit_length() // 2))  # a power of two that divides the size
    rows = table.reshape(-1, columns)
    of_rows = torch.arange(len(rows), dtype=torch.int32, device=table.device) * (2 * columns)
    of_columns = torch.arange(columns, dtype=torch.int32, device=table.device) * 2 + 1
    weighted = rows.sum(1, dtype=torch.int32) * of_rows, rows.sum(0, dtype=torch.int32) * of_columns
    return torch.cat(weighted).sum(dtype=torch.int32)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors of one device in host memory, made in one transfer, which waits for the device."""
    return _unpack(_pack(tensors).to("cpu"), tensors)


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return copies of tensors of the host on a device, made in one transfer, which nothing waits for."""
    packed = _pack(tensors)
    if device.type == "cuda":
        packed = packed.pin_memory()
    return _unpack(packed.to(device, non_blocking=True), tensors)


def on_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return values of the host as a tensor [n] on a device, by one copy, which nothing waits for."""
    staged = torch.tensor(values, dtype=dtype)
    return staged.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else staged.to(device)


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
