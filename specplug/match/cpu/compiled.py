"""Compilation of kernels by numba, without the GIL and with a cache on disk, so that later starts are quick."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

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
