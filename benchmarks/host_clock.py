"""Where the host's time, memory and tensor operations go inside a running engine, told apart by whose code runs.

Everything here works inside the engine's process.  specplug's functions are wrapped, and vLLM's own functions that they
call are wrapped too, so that each moment belongs to exactly one of `PARTS`.
"""

from __future__ import annotations

import functools
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

VLLM, SCHEDULER, WORKER, PROPOSER = "vllm", "scheduler", "worker", "proposer"
PARTS = (SCHEDULER, WORKER, PROPOSER)
"""What is ours: the plan in the scheduler, hooks and draft stage in the worker, and the proposer, thread included."""

_COPIES = ("copy_", "_to_copy", "clone")


class Meter:
    """What each part has used so far.

    Attributes:
        nanoseconds: by part.
        blocks: by part, memory blocks of the Python allocator, those made less those freed.
        peak: by part, the most bytes that one stretch of it held at a time (only under `tracemalloc`).
        ops, copies: by part, tensor operations, and of these copies (only under `counting`).
        largest: by part, bytes of the largest tensor that an operation made (only under `counting`).
    """

    def __init__(self) -> None:
        self.part = VLLM
        self._since, self._blocks_since, self._held_since = time.perf_counter_ns(), sys.getallocatedblocks(), 0
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        parts = (VLLM, *PARTS)
        self.nanoseconds, self.blocks, self.peak = (dict.fromkeys(parts, 0) for _ in range(3))
        self.ops, self.copies, self.largest = (dict.fromkeys(parts, 0) for _ in range(3))
        self.memory = False

    def weigh(self) -> None:
        """Start from zero, and take memory from now on."""
        self.clear()
        self.memory = True
        self._weigh(self.part)
        self.blocks, self.peak = (dict.fromkeys(self.blocks, 0) for _ in range(2))

    def switch(self, part: str) -> str:
        """Let the time from now on belong to `part`; return whose it was."""
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
        """Return `function` as one that runs on `part`'s account."""

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        return metered

    def counting(self) -> _Counting:
        """Return a context that counts tensor operations.  It slows them, so no time is taken in it."""
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


def install(llm: Any) -> Meter:
    """Wrap what runs at every step of an engine in one process, once."""
    from tests.engines.vllm import inside

    scheduler, runner = inside.scheduler(llm), inside.runner(llm)
    meter: Meter | None = getattr(runner, "_specplug_meter", None)
    if meter is None:
        meter = runner._specplug_meter = Meter()
        _scheduler(meter, type(scheduler))
        _hook(meter, type(runner), "execute_model")
        drafter = getattr(runner, "speculator", None) or runner.drafter
        drafter.propose = meter.wrapped(drafter.propose, WORKER)
        for handle, _ in drafter.drafting.stage._lanes:
            handle.step = meter.wrapped(handle.step, PROPOSER)
    return meter


def _scheduler(meter: Meter, ours: type) -> None:
    """Tell the methods of specplug's mixin from those of vLLM's schedulers that they override."""
    mixin, *stock = ours.__mro__[1:-1]
    for name, function in list(vars(mixin).items()):
        overridden = [cls for cls in stock if name in vars(cls)]
        if callable(function) and not name.startswith("__") and overridden:
            setattr(mixin, name, meter.wrapped(function, SCHEDULER))
            for cls in overridden:
                setattr(cls, name, meter.wrapped(vars(cls)[name], VLLM))


def _hook(meter: Meter, cls: type, name: str) -> None:
    """Tell a hook from the method that it wraps, which it holds as `original`."""
    hook = getattr(cls, name)
    cell = hook.__closure__[hook.__code__.co_freevars.index("original")]
    cell.cell_contents = meter.wrapped(cell.cell_contents, VLLM)
    setattr(cls, name, meter.wrapped(hook, WORKER))
