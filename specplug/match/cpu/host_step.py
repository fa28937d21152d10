"""A lookup's step as one C function, for an engine's stream; `specplug.interfaces.HostStep` describes its arguments.

It runs on a driver's thread, beside the threads on which requests begin and end.  Each slot belongs to one of them at a
time.  What all slots share, responses and the corpus index, is guarded by a `flag`: its holder changes them in short
pieces, and a step that finds it taken drafts nothing rather than wait.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.addresses import ingest_at, propose_at
from specplug.match.cpu.compiled import c_function, compiled
from specplug.match.cpu.entries import call_kernel, handle_of, kernel_address
from specplug.match.cpu.evidence import CORPUS as OF_CORPUS
from specplug.match.cpu.flag import FLAG, release, take, try_take
from specplug.match.cpu.pointers import int64_at
from specplug.match.cpu.responses import Responses
from specplug.match.cpu.rows import Rows
from specplug.types.host_step import BUSY, FAILED, OK, StepArgument

_FLAG, _STEP, _INGEST, _PROPOSE, _STATE, _STATUS, _NUMBERS = range(7)
_ARGUMENTS = len(StepArgument)

# Numba takes members of an enumeration for constants only if they are plain integers.
_DATA, _BATCH_SIZE, _SLOTS, _TABLE, _ROWS, _STRIDE, _TABLE_ROWS, _LENGTHS = map(int, list(StepArgument)[:8])
_NUM_NEW, _MOST, _IDS, _CONFIDENCE, _DRAFT_STRIDE, _DRAFT_LENGTHS, _SOURCES, _PARENTS = map(int, list(StepArgument)[8:])


class HostStepMemory:
    """The memory that the C function of one lookup reads in addition to its arguments.

    Args:
        rows: the state of the lookup's slots.
        responses: its response memory, whose flag guards the states as well.

    Attributes:
        address: the address to pass to the function.
    """

    def __init__(self, rows: Rows, responses: Responses) -> None:
        self._rows, self._flag = rows, responses.flag
        self._numbers = np.zeros(_NUMBERS, np.int64)
        self._numbers[_FLAG] = self._flag.ctypes.data
        self.address = self._numbers.ctypes.data
        self._state: Any = None

    def use(self, state: Any, *, leaves_index: bool) -> None:
        """Let the function use a state, see `Lookup`.

        Args:
            state: the state.
            leaves_index: whether its corpus index is another one, so that rows must not go on in the index before.
        """
        rows = self._rows
        _replace(self._numbers, self._flag, handle_of(state), rows.anchors, rows.bounds, leaves_index)
        self._state = state

    def function(self) -> int:
        """Return the address of the C function."""
        assert self._state is not None
        kernels = ingest_at, propose_at
        self._numbers[[_INGEST, _PROPOSE]] = [kernel_address(it, self._state, *(0,) * 9) for it in kernels]
        self._numbers[_STEP] = kernel_address(_step, 0)
        return int(_host_step().address)


@compiled
def _replace(numbers: Any, flag: Any, state: int, anchors: Any, bounds: Any, leaves_index: bool) -> None:
    """Replace the state while no step uses it."""
    take(flag)
    numbers[_STATE] = state
    if leaves_index:
        anchors[:, OF_CORPUS] = 0
        bounds[:] = 0
    release(flag)


@compiled
def _step(arguments: int) -> None:
    """Ingest and draft; store the step's status."""
    n = carray(int64_at(arguments), _ARGUMENTS)
    own = carray(int64_at(n[_DATA]), _NUMBERS)
    flag = carray(int64_at(own[_FLAG]), FLAG)
    if not try_take(flag):
        own[_STATUS] = BUSY
        return
    own[_STATUS] = OK if _ingest_and_propose(n, own) == 0 else FAILED
    release(flag)


@compiled
def _ingest_and_propose(n: Any, own: Any) -> int:
    inputs = (n[_SLOTS], n[_TABLE], n[_ROWS], n[_STRIDE], n[_TABLE_ROWS], 0, n[_LENGTHS], n[_NUM_NEW])
    status = call_kernel(own[_INGEST], own[_STATE], (n[_BATCH_SIZE], *inputs))
    outputs = (n[_IDS], n[_CONFIDENCE], n[_DRAFT_STRIDE], n[_DRAFT_LENGTHS], n[_SOURCES], n[_PARENTS])
    return status | call_kernel(own[_PROPOSE], own[_STATE], (n[_BATCH_SIZE], n[_SLOTS], n[_MOST], *outputs))  # type: ignore[no-any-return]


def _entry(arguments: int) -> int:
    """Run `_step`, by address: numba must see that nothing here raises, or the C function could take the GIL."""
    own = int64_at(int64_at(arguments)[_DATA])
    call_kernel(own[_STEP], arguments, ())
    return own[_STATUS]  # type: ignore[no-any-return]


@cache
def _host_step() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("int32(int64)")(_entry)
