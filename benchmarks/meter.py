"""Meter that attributes a process's host time and tensor operations to parts of the code."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Meter:
    """Resources that each part has used so far.

    Args:
        outside: the name of all code outside the parts.
        parts: the names of the measured parts.

    Attributes:
        nanoseconds: time by part.
        ops: by part, number of tensor operations (only under `counting`).
    """

    def __init__(self, outside: str, parts: Sequence[str]) -> None:
        self.part, self._parts = outside, (outside, *parts)
        self._since = time.perf_counter_ns()
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.nanoseconds, self.ops = (dict.fromkeys(self._parts, 0) for _ in range(2))

    def switch(self, part: str) -> str:
        """Attribute the time from now on to `part`; return the previous part."""
        now, before = time.perf_counter_ns(), self.part
        self.nanoseconds[before] += now - self._since
        self.part, self._since = part, time.perf_counter_ns()
        return before

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
        self._meter.ops[self._meter.part] += 1
        return func(*args, **(kwargs or {}))
