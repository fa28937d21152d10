"""Locks that compiled code takes and waits for without the GIL: a flag, and POSIX semaphores.

The flag keeps steps in an engine's stream away from what all slots of a lookup share, while that changes.  Only
compiled code takes and releases it: Python code would wait for the GIL with the flag held, often for milliseconds, and
steps that find it taken draft nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.intrinsics import call_at, fetch_add, load

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


_SIZE = 64
"""Bytes for a semaphore, at least those of `sem_t`, in a cache line of its own."""


class Semaphores:
    """POSIX semaphores, and the addresses of the functions that use them; these are 0 where there are none.

    They are never destroyed: that would free nothing on Linux, where a semaphore is a number in its memory.

    Args:
        count: of semaphores.

    Attributes:
        places: the address of each.
        wait, try_wait, post: addresses of `sem_wait`, `sem_trywait` and `sem_post`.
        work: whether the system has such semaphores.
    """

    def __init__(self, count: int) -> None:
        self._memory = np.zeros((count + 1) * _SIZE // 8, np.int64)
        first = -(-self._memory.ctypes.data // _SIZE) * _SIZE
        self.places = tuple(first + _SIZE * number for number in range(count))
        self.wait = self.try_wait = self.post = 0
        try:
            library = ctypes.CDLL(None)
            self._create, self._post = library.sem_init, library.sem_post
            functions = (library.sem_wait, library.sem_trywait, library.sem_post)
            self.wait, self.try_wait, self.post = (ctypes.cast(it, ctypes.c_void_p).value or 0 for it in functions)
            self.work = self.create()
        except (AttributeError, OSError, TypeError):  # not a POSIX system
            self.work = False

    def create(self) -> bool:
        """Set all to 0; return whether the system has such semaphores."""
        return all(self._create(ctypes.c_void_p(it), 0, 0) == 0 for it in self.places)

    def post_to(self, index: int) -> None:
        """Wake one thread that waits for a semaphore."""
        self._post(ctypes.c_void_p(self.places[index]))
