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
from specplug.match.cpu.pointers import int32_at, int64_at
from specplug.match.cpu.responses import Responses
from specplug.match.cpu.rows import Rows
from specplug.types.host_step import BUSY, FAILED, OK, StepArgument

_FLAG, _STEP, _INGEST, _PROPOSE, _STATE, _UNLEARNT, _SEEDED, _LIMITS, _DRAFTED_FOR, _STATUS, _NUMBERS = range(11)
_ARGUMENTS = len(StepArgument)

# Numba takes members of an enumeration for constants only if they are plain integers.
_DATA, _BATCH_SIZE, _SLOTS, _TABLE, _ROWS, _STRIDE, _TABLE_ROWS, _LENGTHS = map(int, list(StepArgument)[:8])
_NUM_NEW, _MOST, _IDS, _CONFIDENCE, _DRAFT_STRIDE, _DRAFT_LENGTHS, _SOURCES, _PARENTS = map(int, list(StepArgument)[8:])


class HostStepMemory:
    """The memory that the C function of one lookup reads in addition to its arguments.

    Args:
        max_slots: S.
        rows: the state of the lookup's slots.
        responses: its response memory, whose flag guards the states as well.

    Attributes:
        seeded: [S] int64, 1 for slots that neither use nor change learnt hit rates.
        address: the address to pass to the function.
    """

    def __init__(self, max_slots: int, rows: Rows, responses: Responses) -> None:
        self.seeded = np.zeros(max_slots, np.int64)
        self._limits = np.zeros(2 * max_slots, np.int32)
        self._rows, self._flag = rows, responses.flag
        self._numbers = np.zeros(_NUMBERS, np.int64)
        self._numbers[[_FLAG, _SEEDED, _LIMITS, _DRAFTED_FOR]] = [
            it.ctypes.data for it in (self._flag, self.seeded, self._limits, rows.drafted_for)
        ]
        self.address = self._numbers.ctypes.data
        self._states: tuple[Any, Any] | None = None

    def use(self, learnt: Any, unlearnt: Any, *, leaves_index: bool) -> None:
        """Let the function use these states, see `Lookup`.

        Args:
            learnt, unlearnt: the states.
            leaves_index: whether their corpus index is another one, so that rows must not go on in the index before.
        """
        rows, handles = self._rows, (handle_of(learnt), handle_of(unlearnt))
        _replace(self._numbers, self._flag, *handles, rows.anchors, rows.bounds, leaves_index)
        self._states = learnt, unlearnt

    def function(self) -> int:
        """Return the address of the C function."""
        assert self._states is not None
        kernels = ingest_at, propose_at
        self._numbers[[_INGEST, _PROPOSE]] = [kernel_address(it, self._states[0], *(0,) * 9) for it in kernels]
        self._numbers[_STEP] = kernel_address(_step, 0)
        return int(_host_step().address)


@compiled
def _replace(
    numbers: Any, flag: Any, learnt: int, unlearnt: int, anchors: Any, bounds: Any, leaves_index: bool
) -> None:
    """Replace the states while no step uses them."""
    take(flag)
    numbers[_STATE], numbers[_UNLEARNT] = learnt, unlearnt
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
    batch_size, slots = n[_BATCH_SIZE], carray(int64_at(n[_SLOTS]), n[_BATCH_SIZE])
    num_seeded = _sort_out(n, own, slots)
    inputs = (n[_SLOTS], n[_TABLE], n[_ROWS], n[_STRIDE], n[_TABLE_ROWS], 0, n[_LENGTHS], n[_NUM_NEW])
    status = call_kernel(own[_INGEST], own[_STATE], (batch_size, *inputs))
    outputs = (n[_IDS], n[_CONFIDENCE], n[_DRAFT_STRIDE], n[_DRAFT_LENGTHS], n[_SOURCES], n[_PARENTS])
    size_of_limits = 4 * batch_size
    if num_seeded < batch_size:
        status |= call_kernel(own[_PROPOSE], own[_STATE], (batch_size, n[_SLOTS], own[_LIMITS], *outputs))
    if num_seeded > 0:
        limits = own[_LIMITS] + size_of_limits
        status |= call_kernel(own[_PROPOSE], own[_UNLEARNT], (batch_size, n[_SLOTS], limits, *outputs))
    return status  # type: ignore[no-any-return]


@compiled
def _sort_out(n: Any, own: Any, slots: Any) -> int:
    """Split the limits into those of seeded rows, which neither use nor change what was learnt, and those of others.

    Return the number of seeded rows.
    """
    batch_size = slots.size
    most, limits = carray(int32_at(n[_MOST]), batch_size), carray(int32_at(own[_LIMITS]), 2 * batch_size)
    count = 0
    for row in range(batch_size):
        is_seeded = carray(int64_at(own[_SEEDED] + 8 * slots[row]), 1)[0] != 0
        limits[row], limits[batch_size + row] = (0, most[row]) if is_seeded else (most[row], 0)
        if is_seeded:
            count += 1
            carray(int32_at(own[_DRAFTED_FOR] + 4 * slots[row]), 1)[0] = -1
    return count


def _entry(arguments: int) -> int:
    """Run `_step`, by address: numba must see that nothing here raises, or the C function could take the GIL."""
    own = int64_at(int64_at(arguments)[_DATA])
    call_kernel(own[_STEP], arguments, ())
    return own[_STATUS]  # type: ignore[no-any-return]


@cache
def _host_step() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("int32(int64)")(_entry)
