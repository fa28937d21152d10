"""A check of one tensor's shape, dtype and device that reads no values."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.errors import ContractError

ANY = -1
"""A size that is not checked."""


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
