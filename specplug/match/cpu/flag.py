"""The flag that keeps steps in an engine's stream away from what all slots of a lookup share, while that changes.

Only compiled code takes and releases it.  Python code would wait for the GIL with the flag held, often for
milliseconds, and steps that find it taken draft nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.match.cpu.atomics import call_at, fetch_add, load
from specplug.match.cpu.compiled import compiled

TAKEN, _SLEEP, FLAG = range(3)
"""Indices of the numbers of a flag: 0 if nobody has it, and the address of `usleep`; and how many numbers they are."""

_WAIT = 20
"""Microseconds between two attempts to take the flag."""


def make_flag() -> npt.NDArray[np.int64]:
    """Return a flag, [`FLAG`] int64, that nobody has."""
    sleep = getattr(ctypes.pythonapi, "usleep", None)  # where there is none, threads look again at once
    return np.array([0, 0 if sleep is None else ctypes.cast(sleep, ctypes.c_void_p).value], np.int64)


@compiled
def try_take(flag: Any) -> bool:
    """Take the flag, if nobody has it."""
    if load(flag, TAKEN) != 0:
        return False
    if fetch_add(flag, TAKEN, 1) == 0:
        return True
    release(flag)
    return False


@compiled
def take(flag: Any) -> None:
    """Take the flag, as soon as nobody has it."""
    while not try_take(flag):
        if flag[_SLEEP] != 0:
            call_at(flag[_SLEEP], _WAIT)


@compiled
def release(flag: Any) -> None:
    """Release the flag."""
    fetch_add(flag, TAKEN, -1)
