"""Launcher: launches a Triton kernel without Triton's look at every argument, once the kernel is compiled."""

from __future__ import annotations

from typing import Any


class Launcher:
    """Launches one kernel, none of whose arguments is specialised, so that their types alone decide on the code.

    `kernel[grid](...)` examines all arguments and all globals at each launch, which takes 14 to 90 us for kernels of 20
    to 45 arguments.  What it returns at its first launch, the compiled kernel, is launched in 2 to 4 us.  Triton's
    interpreter returns nothing, and runs each launch.

    Args:
        kernel: of `triton.jit`; its constants come last.
        num_warps: warps of a program.
    """

    def __init__(self, kernel: Any, num_warps: int) -> None:
        self._kernel, self._num_warps = kernel, num_warps
        self._compiled: dict[object, Any] = {}

    def __call__(self, grid: tuple[int, int, int], *arguments: Any, types: object = None, **constants: int) -> None:
        """Launch.

        Args:
            grid: programs in three dimensions.
            arguments: tensors, the first on the kernel's device, and numbers of 32 bits.
            types: the dtypes of tensors that may have several.
            constants: in the kernel's order.
        """
        key = types, arguments[0].get_device(), *constants.values()
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled[grid](*arguments, *constants.values())
            return
        compiled = self._kernel[grid](*arguments, **constants, num_warps=self._num_warps)
        if compiled is not None:
            self._compiled[key] = compiled
