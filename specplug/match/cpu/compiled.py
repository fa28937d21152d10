"""How kernels are compiled: by numba, without the GIL, and cached on disk, so that a second start is quick."""

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
    """Compile a kernel at its first call, or load it from the cache.  It runs without the GIL."""
    with _own_cache():
        kernel: Any = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return cast("Function", kernel)


def cache_folder() -> Path:
    """Return where compiled kernels are kept: in `NUMBA_CACHE_DIR`, else with the user's other caches.

    Numba's own place beside the source holds code of one version only: environments that share a source tree would
    compile anew in turns.  It also takes a kernel for current when the kernel's own file is, though one that it calls
    has changed.  So there is one folder per numba version and state of all the sources.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(home) / "specplug")
    return kept / f"numba-{numba.__version__}-{_state()}"


@cache
def _state() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@contextmanager
def _own_cache() -> Iterator[None]:
    """Let numba choose our folder for what is decorated meanwhile; it falls back to others where this cannot be
    written."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(cache_folder())
    try:
        yield
    finally:
        settings.CACHE_DIR = before
