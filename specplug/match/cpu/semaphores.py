"""POSIX semaphores that compiled code waits for and posts to, by address, without the GIL."""

from __future__ import annotations

import ctypes

import numpy as np

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
