"""Attribution of host time and tensor operations inside a running vLLM to the code that uses them.

All functions here run inside the engine's process.  specplug's functions are wrapped, and so are vLLM's own functions
that they call, so that each moment belongs to exactly one of `PARTS`, or to vLLM.
"""

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
        clock: returns nanoseconds.

    Attributes:
        nanoseconds: time by part.
        ops: by part, number of tensor operations (only under `counting`).
    """

    def __init__(self, outside: str, parts: Sequence[str], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.part = outside
        self._parts = (outside, *parts)
        self._clock = clock
        self._since = clock()
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.nanoseconds, self.ops = (dict.fromkeys(self._parts, 0) for _ in range(2))

    def switch(self, part: str) -> str:
        """Attribute the time from now on to `part`; return the previous part."""
        now = self._clock()
        before = self.part
        self.nanoseconds[before] += now - self._since
        self.part = part
        self._since = self._clock()
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


VLLM, SCHEDULER, WORKER, PROPOSER = "vllm", "scheduler", "worker", "proposer"
PARTS = (SCHEDULER, WORKER, PROPOSER)
"""specplug's parts: plan in the scheduler, hooks and draft stage in the worker, and the proposer with its thread."""


def install(llm: Any) -> Meter:
    """Wrap the functions that run at every step of a single-process engine, once."""
    from tests.engines.vllm import inside

    scheduler, runner = inside.scheduler(llm), inside.runner(llm)
    meter: Meter | None = getattr(runner, "_specplug_meter", None)
    if meter is None:
        meter = runner._specplug_meter = Meter(VLLM, PARTS)
        wrap_scheduler(meter, type(scheduler))
        wrap_hook(meter, type(runner), "execute_model")
        drafter = getattr(runner, "speculator", None) or runner.drafter
        drafter.propose = meter.wrapped(drafter.propose, WORKER)
        for proposer in drafter.drafting.stage.runners:
            proposer.handle.step = meter.wrapped(proposer.handle.step, PROPOSER)
    return meter


def wrap_scheduler(meter: Meter, scheduler: type) -> None:
    """Wrap the methods of specplug's mixins and the scheduler methods of vLLM that they override as different parts."""
    vllm = [cls for cls in scheduler.__mro__ if cls.__module__.startswith("vllm.")]
    overridden = set[str]()
    for mixin in [cls for cls in scheduler.__mro__ if cls.__module__.startswith("specplug_vllm.")]:
        for name, function in list(vars(mixin).items()):
            if callable(function) and not name.startswith("__") and any(name in vars(cls) for cls in vllm):
                setattr(mixin, name, meter.wrapped(function, SCHEDULER))
                overridden.add(name)
    for cls in vllm:
        for name in overridden & vars(cls).keys():
            setattr(cls, name, meter.wrapped(vars(cls)[name], VLLM))


def wrap_hook(meter: Meter, cls: type, name: str) -> None:
    """Wrap a hook and the method that it wraps, its `original`, as different parts."""
    hook = getattr(cls, name)
    cell = hook.__closure__[hook.__code__.co_freevars.index("original")]
    cell.cell_contents = meter.wrapped(cell.cell_contents, VLLM)
    setattr(cls, name, meter.wrapped(hook, WORKER))
