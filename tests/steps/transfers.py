"""Views in poisoned memory."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

POISON = 1 << 30
"""As an index it is out of range everywhere, and as a number it is no token and no count of a step."""


def view_of(random: Random, tensor: Tensor) -> Tensor:
    """Return the contents of a tensor as a view of larger memory, which is poisoned: NaN for floats.

    The view begins anywhere, and its rows and the elements of vectors lie apart; the columns of a table do not.
    """
    strides = [1] * tensor.dim()
    for axis in range(tensor.dim() - 2, -1, -1):
        strides[axis] = strides[axis + 1] * tensor.shape[axis + 1] + random.randint(0, 3)
    if tensor.dim() == 1:
        strides = [random.randint(1, 3)]
    offset = random.randint(0, 3)
    size = offset + sum(stride * length for stride, length in zip(strides, tensor.shape, strict=True)) + 1
    poison = float("nan") if tensor.is_floating_point() else POISON
    memory = torch.full((size,), poison, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, strides, offset).copy_(tensor)
