"""Detector of operations that mix devices, which a drafting step must not do."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OneDevice(TorchDispatchMode):
    """Notes the name of every operation that touches a tensor with dimensions on another device."""

    def __init__(self, device: torch.device, found: list[str]) -> None:
        super().__init__()
        self._device, self.found, self.count = device, found, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.device != self._device and tensor.ndim for tensor in tensors):
            self.found.append(func.__name__)
        self.count += 1
        return result
