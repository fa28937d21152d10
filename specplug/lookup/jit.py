"""Compilation by numba, without the GIL, and with a cache on disk for each state of this folder's sources.

Numba considers a function current if its own file is unchanged, whatever constants and functions it uses.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_SOURCES = b"".join(source.read_bytes() for source in sorted(Path(__file__).parent.glob("*.py")))
_HOME = (
    os.environ.get("NUMBA_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specplug"
)
FOLDER = Path(_HOME) / f"numba-{numba.__version__}-{hashlib.sha256(_SOURCES).hexdigest()[:12]}"


def compiled(function: Function, **replaced: Any) -> Function:
    """Return a function that its first call compiles or loads from the cache, with some of its globals replaced."""
    names = {**function.__globals__, **replaced} if replaced else function.__globals__
    own = FunctionType(function.__code__, names, function.__name__)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(FOLDER)
    try:
        return cast("Function", numba.njit(nogil=True, cache=True, error_model="numpy")(own))
    finally:
        settings.CACHE_DIR = before
