"""How kernels are compiled: by numba, without the GIL, and cached on disk, so that a second start is quick.

`StructureType` makes records of arrays that kernels take as one argument: handing over thirty arrays one by one costs
microseconds at every call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import types
from numba.experimental import structref

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a kernel at its first call, or load it from the cache.  It runs without the GIL."""
    with _own_cache():
        kernel: Function = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return kernel


def cache_folder() -> Path:
    """Return where compiled kernels are kept: `NUMBA_CACHE_DIR`, else a folder of the user's, one per numba version.

    Numba's own place beside the source holds code of one version only: environments that share a source tree would
    compile anew in turns.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "specplug" / f"numba-{numba.__version__}"


@contextmanager
def _own_cache() -> Iterator[None]:
    """Let numba choose our folder for what is decorated meanwhile; it falls back to others where this cannot be
    written."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


class StructureType(types.StructRef):  # type: ignore[misc]
    """What numba calls a record of arrays."""

    def preprocess_fields(self, fields: Any) -> Any:
        """Forget that a field was a literal, so that equal records have one type."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)
