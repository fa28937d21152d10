"""Launcher: launches a Triton kernel without Triton's look at every argument, once the kernel is compiled.

`RowWork` is what one program per row does, in a kernel of its own or in another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Launch(NamedTuple):
    """A launch that was made.

    Attributes:
        function: launches.
        arguments: of the function.
        takes_addresses: whether it takes the addresses of tensors in their place.
    """

    function: Callable[..., None]
    arguments: Sequence[Any]
    takes_addresses: bool = False


class _Recording(threading.local):
    launches: list[Launch] | None = None


_recording = _Recording()


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Return a list to which all launches of this thread are added."""
    launches = _recording.launches = list[Launch]()
    try:
        yield launches
    finally:
        _recording.launches = None


class Number(int):
    """An argument that differs from step to step."""


class Launcher:
    """Launches one kernel, none of whose arguments is specialised, so that their types alone decide on the code.

    `kernel[grid](...)` examines all arguments and all globals at each launch, which takes 14 to 90 us for kernels of 20
    to 45 arguments.  The compiled kernel itself is launched in 2 to 4 us.  Triton specialises the entries of a tuple
    whatever the kernel's decorator asks for, so it gets others at the first launch; see `without_values`.  Its
    interpreter runs each launch.

    Args:
        kernel: of `triton.jit`; its constants come last.
        num_warps: warps of a program.
    """

    def __init__(self, kernel: Any, num_warps: int) -> None:
        self._kernel = kernel
        self._num_warps = num_warps
        self._is_interpreted = not hasattr(kernel, "device_caches")
        self.compiled: dict[object, Any] = {}
        """The compiled kernels by types, device and constants."""

    def __call__(self, grid: tuple[int, int, int], *arguments: Any, types: object = None, **constants: Any) -> None:
        """Launch; without programs, only compile.

        Args:
            grid: programs in three dimensions.
            arguments: tensors, numbers of 32 bits, None, and named tuples of these; a tensor on the kernel's device
                comes first.
            types: the dtypes of tensors that may have several, and what is None at times.
            constants: in the kernel's order.
        """
        if self._is_interpreted:
            launch(partial(self._kernel[grid], **constants), arguments)
            return
        first = arguments[0]
        while isinstance(first, tuple):
            first = first[0]
        key = types, first.get_device(), *constants.values()
        compiled = self.compiled.get(key)
        if compiled is None:
            others = map(without_values, arguments)
            compiled = self._kernel.warmup(*others, **constants, grid=grid, num_warps=self._num_warps)
            self.compiled[key] = compiled
        if all(grid):
            launch(_bound(compiled, grid), (*arguments, *constants.values()), takes_addresses=True)


def _bound(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., None]:
    """Return what launches a compiled kernel, as Triton does but for the hooks of its own profiler."""
    from triton.runtime import driver

    active = driver.active
    run = compiled.run
    function = compiled.function
    metadata = compiled.packed_metadata

    def run_it(*arguments: Any) -> None:
        stream = active.get_current_stream(active.get_current_device())
        run(*grid, stream, function, metadata, None, None, None, *arguments)

    return run_it


def launch(function: Callable[..., None], arguments: Sequence[Any], *, takes_addresses: bool = False) -> None:
    """Call what launches a kernel; a recorded launch is made again by the same call with other arguments."""
    function(*arguments)
    if _recording.launches is not None:
        _recording.launches.append(Launch(function, arguments, takes_addresses))


def without_values(argument: Any) -> Any:
    """Return an argument of the same type whose value and alignment Triton has no code of their own for."""
    if isinstance(argument, tuple):
        others = map(without_values, argument)
        return type(argument)(*others) if hasattr(argument, "_fields") else tuple(others)
    if isinstance(argument, Tensor):
        return torch.empty(2, dtype=argument.dtype)[1:]
    return argument if argument is None or isinstance(argument, bool) else 2


def power_of_two(number: int) -> int:
    """Return the least power of two that is not smaller; Triton's own function takes 10 us."""
    return 1 << (number - 1).bit_length()


class RowWork(NamedTuple):
    """What one program per row does, which `kernel` launches, or another kernel does in its own programs.

    Attributes:
        kernel: the launcher of a kernel of `record` and `SIZES`.
        function: of `triton.jit`, called with the record, the number of the program, and the sizes.
        record: the named tuple of its arguments.
        sizes: its constants.
        types: see `Launcher`.
        programs: their number.
        rows: [>= programs] int32, the draft's row of each program, -1 for none; None if programs are rows.
    """

    kernel: Launcher
    function: Any
    record: Any
    sizes: tuple[int, ...]
    types: tuple[object, ...]
    programs: int
    rows: Tensor | None = None

    def launch(self) -> None:
        """Launch the work's own kernel."""
        self.kernel((self.programs, 1, 1), self.record, types=self.types, SIZES=self.sizes)


@dataclass
class Around:
    """What a step does before and after its proposer, whose own kernels may do it; they replace it by None then."""

    begin: RowWork | None = None
    finish: RowWork | None = None
