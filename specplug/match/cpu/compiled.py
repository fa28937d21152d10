"""Compilation of kernels by numba, without the GIL and with a cache on disk, and calls of compiled kernels by address.

Calls by address come from C code on threads that Python does not know, such as a driver's.  Kernels are called in
numba's own calling convention, which returns a status.  Numba's wrappers of kernels are left out: they take the GIL, if
only to report an exception.  A call by address also spares compiling a kernel once more into each of its callers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Decorate a kernel: its first call compiles it or loads it from the cache.  It runs without the GIL."""
    with _own_cache(Path(function.__code__.co_filename).parent):
        kernel: Any = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return cast("Function", kernel)


def c_function(signature: str) -> Callable[[Function], Any]:
    """Return a decorator that compiles a C function, or loads it from the cache; its `address` is the function's."""

    def compile_it(function: Function) -> Any:
        with _own_cache(Path(function.__code__.co_filename).parent):
            return numba.cfunc(signature, cache=True, error_model="numpy")(function)

    return compile_it


def inlined(function: Function) -> Function:
    """Decorate a part of kernels that is compiled into each of its callers and never alone.

    A compiled kernel is optimised again, with all that it calls, in each of its callers, so every layer takes seconds.
    """
    kernel: Any = numba.njit(nogil=True, error_model="numpy", inline="always")(function)
    return cast("Function", kernel)


def cache_folder(sources: Path | None = None) -> Path:
    """Return the folder of compiled kernels: in `NUMBA_CACHE_DIR`, or else in the user's cache directory.

    Numba's default folder next to the source holds code of only one version, so environments that share a source tree
    would recompile in turns.  Numba also considers a kernel current if its own file is unchanged, even if a kernel that
    it calls has changed.  So there is one folder per numba version and state of all source files in this folder and, if
    given, in `sources`.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(home) / "specplug")
    return kept / f"numba-{numba.__version__}-{_state(Path(__file__).parent, sources)}"


@cache
def _state(*folders: Path | None) -> str:
    sources = [source for folder in dict.fromkeys(folders) if folder for source in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@contextmanager
def _own_cache(sources: Path) -> Iterator[None]:
    """Make numba cache functions that are decorated in this context in the `cache_folder` of their sources.

    Numba falls back to other folders if it is not writable.
    """
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(cache_folder(sources))
    try:
        yield
    finally:
        settings.CACHE_DIR = before


def _call(_typing: Any, _function: Any, _record: Any, numbers: Any) -> Any:
    count = len(numbers)

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, number = cgutils.voidptr_t, ir.IntType(64)
        form = ir.FunctionType(ir.IntType(32), [pointer.as_pointer()] * 2 + [pointer] + [number] * count)
        function, record, numbers = arguments
        unused = [cgutils.alloca_once(builder, pointer) for _ in range(2)]  # type: ignore[no-untyped-call]
        further = cgutils.unpack_tuple(builder, numbers)  # type: ignore[no-untyped-call]
        return builder.call(
            builder.inttoptr(function, form.as_pointer()),
            [*unused, builder.inttoptr(record, pointer), *further],
        )

    taken = types.UniTuple(types.int64, count) if count else types.Tuple(())  # type: ignore[no-untyped-call]
    return types.int32(types.int64, types.int64, taken), generate


call_kernel: Any = intrinsic(_call)
"""Inside kernels, `call_kernel(function, record, numbers)` runs the kernel at the address `function` on a record.

`kernel_address` and `handle_of` give the first two arguments, and a kernel may take another number than a record's.
`numbers` is a tuple of the kernel's further arguments, int64.  The call returns 0, or another number if the kernel
raised an exception, which is dropped; no kernel that is called so raises any.
"""


def kernel_address(kernel: Any, *arguments: Any) -> int:
    """Return the address of the code of a kernel that takes arguments like these, records or integers."""
    signature = tuple(map(typeof, arguments))
    kernel.compile(signature)
    built = kernel.overloads[signature]
    return int(built.library.get_pointer_to_function(built.fndesc.llvm_func_name))


def _handle(_typing: Any, record: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])  # type: ignore[no-untyped-call]
        return builder.ptrtoint(value.meminfo, context.get_value_type(signature.return_type))

    return types.int64(record), generate  # type: ignore[no-untyped-call]


_handle_of: Any = intrinsic(_handle)


@compiled
def handle_of(record: Any) -> int:
    """Return the number by which `call_kernel` takes a record, which its owner keeps alive."""
    return _handle_of(record)  # type: ignore[no-any-return]
