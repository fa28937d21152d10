"""Meter that attributes a process's host time, memory and tensor operations to parts of the code."""

from __future__ import annotations

import functools
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_COPIES = ("copy_", "_to_copy", "clone")


class Meter:
    """Resources that each part has used so far.

    Args:
        outside: the name of all code outside the parts.
        parts: the names of the measured parts.

    Attributes:
        nanoseconds: time by part.
        blocks: by part, memory blocks of the Python allocator, allocated minus freed.
        peak: by part, peak bytes of one uninterrupted stretch (only under `tracemalloc`).
        ops, copies: by part, numbers of tensor operations and of copies among them (only under `counting`).
        largest: by part, bytes of the largest tensor that an operation created (only under `counting`).
    """

    def __init__(self, outside: str, parts: Sequence[str]) -> None:
        self.part, self._parts = outside, (outside, *parts)
        self._since, self._blocks_since, self._held_since = time.perf_counter_ns(), sys.getallocatedblocks(), 0
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        parts = self._parts
        self.nanoseconds, self.blocks, self.peak = (dict.fromkeys(parts, 0) for _ in range(3))
        self.ops, self.copies, self.largest = (dict.fromkeys(parts, 0) for _ in range(3))
        self.memory = False

    def weigh(self) -> None:
        """Start from zero, and measure memory from now on."""
        self.clear()
        self.memory = True
        self._weigh(self.part)
        self.blocks, self.peak = (dict.fromkeys(self.blocks, 0) for _ in range(2))

    def switch(self, part: str) -> str:
        """Attribute the time from now on to `part`; return the previous part."""
        now, before = time.perf_counter_ns(), self.part
        self.nanoseconds[before] += now - self._since
        if self.memory:
            self._weigh(before)
        self.part, self._since = part, time.perf_counter_ns()
        return before

    def _weigh(self, before: str) -> None:
        blocks = sys.getallocatedblocks()
        self.blocks[before] += blocks - self._blocks_since
        self._blocks_since = blocks
        if tracemalloc.is_tracing():
            self.peak[before] = max(self.peak[before], tracemalloc.get_traced_memory()[1] - self._held_since)
            tracemalloc.reset_peak()
            self._held_since = tracemalloc.get_traced_memory()[0]

    def wrapped(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return `function` wrapped so that its use is attributed to `part`."""

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        return metered

    def counting(self) -> _Counting:
        """Return a context that counts tensor operations.  It slows them, so no time is measured."""
        return _Counting(self)


class _Counting(TorchDispatchMode):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        meter, part = self._meter, self._meter.part
        result = func(*args, **(kwargs or {}))
        meter.ops[part] += 1
        meter.copies[part] += func.overloadpacket.__name__ in _COPIES
        if isinstance(result, torch.Tensor) and not func.is_view:
            meter.largest[part] = max(meter.largest[part], result.numel() * result.element_size())
        return result
