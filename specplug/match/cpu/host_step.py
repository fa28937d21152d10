"""A lookup's step as one C function, for an engine's stream, and its two halves by address, for other callers.

`specplug.types.host_step.StepArguments` describes the arguments.  They are addresses, as numpy views of a dozen tensors
would take longer to create than the step itself.

The C function runs on a driver's thread, beside the threads on which requests begin and end.  Each slot belongs to one
of them at a time.  What all slots share, responses and the corpus index, is guarded by a flag: its holder changes them
in short pieces, and a step that finds it taken drafts nothing rather than wait.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import c_function, call_kernel, compiled, handle_of, kernel_address
from specplug.match.cpu.evidence import CORPUS as OF_CORPUS
from specplug.match.cpu.intrinsics import int32_at, int64_at, struct_at
from specplug.match.cpu.locks import FLAG, release, take, try_take
from specplug.match.cpu.parallel import DRAFT, EXTEND, arguments_at, run
from specplug.match.cpu.records import borrowed
from specplug.match.cpu.responses import Responses
from specplug.match.cpu.rows import SlotStates
from specplug.match.cpu.steps import learn_from
from specplug.types.host_step import BUSY, FAILED, OK, Int64Struct, int64_fields


@int64_fields
class HostStepMemory(Int64Struct):
    """The memory that the C function of one lookup reads in addition to its arguments, whose `data` is its address."""

    flag: int
    """Address of the flag."""
    state: int
    """Handle of the lookup's state."""
    step: int
    ingest: int
    propose: int
    """Addresses of the kernels `_step`, `ingest_at` and `propose_at`."""
    status: int
    """The step's status, which the function writes."""


_memory_at = struct_at(HostStepMemory)


class LookupHostStep:
    """The step of one lookup as a C function.

    Args:
        rows: the state of the lookup's slots.
        responses: its response memory, whose flag guards the states as well.
    """

    def __init__(self, rows: SlotStates, responses: Responses) -> None:
        self._rows, self._flag = rows, responses.flag
        self._memory = HostStepMemory(flag=self._flag.ctypes.data)
        self.address = self._memory.address
        self._state: Any = None

    def use(self, state: Any, *, leaves_index: bool) -> None:
        """Let the function use a state, see `Lookup`.

        `leaves_index`: its corpus index is another one, so that rows must not go on in the index before.
        """
        rows = self._rows
        _replace(self.address, self._flag, handle_of(state), rows.anchors, rows.bounds, leaves_index)
        self._state = state

    def function(self) -> int:
        """Return the address of the C function; its `data` is `address`."""
        assert self._state is not None
        self._memory.ingest, self._memory.propose = (
            kernel_address(it, self._state, 0) for it in (ingest_at, propose_at)
        )
        self._memory.step = kernel_address(_step, 0)
        return int(_host_step().address)


@compiled
def ingest_at(state: Any, arguments: int) -> None:
    """Run `learn_from` and `extend_texts` on the arrays of `StepArguments` at an address.

    Slots learn one after another, in this thread; their texts are extended by the threads of the state's pool.
    """
    own, a = borrowed(state), arguments_at(arguments)
    learn_from(
        own,
        carray(int64_at(a.slots), a.batch_size),
        carray(int32_at(a.table), (a.num_rows, a.stride)),
        carray(int64_at(a.table_rows), a.batch_size),
        carray(int32_at(a.first), a.batch_size if a.first else 0),
        carray(int32_at(a.lengths), a.batch_size),
        carray(int32_at(a.num_new), a.batch_size),
    )
    run(own, EXTEND, arguments, a.batch_size)


@compiled
def propose_at(state: Any, arguments: int) -> None:
    """Run `steps.propose` on the arrays of `StepArguments` at an address."""
    run(borrowed(state), DRAFT, arguments, arguments_at(arguments).batch_size)


@compiled
def _replace(memory: int, flag: Any, state: int, anchors: Any, bounds: Any, leaves_index: bool) -> None:
    """Replace the state while no step uses it."""
    take(flag)
    _memory_at(memory).state = state
    if leaves_index:
        anchors[:, OF_CORPUS] = 0
        bounds[:] = 0
    release(flag)


@compiled
def _step(arguments: int) -> None:
    """Ingest and draft; store the step's status."""
    own = _memory_at(arguments_at(arguments).data)
    flag = carray(int64_at(own.flag), FLAG)
    if not try_take(flag):
        own.status = BUSY
        return
    failed = call_kernel(own.ingest, own.state, (arguments,)) | call_kernel(own.propose, own.state, (arguments,))
    own.status = FAILED if failed else OK
    release(flag)


def _entry(arguments: int) -> int:
    """Run `_step`, by address: numba must see that nothing here raises, or the C function could take the GIL."""
    own = _memory_at(arguments_at(arguments).data)
    call_kernel(own.step, arguments, ())
    return own.status  # type: ignore[no-any-return]


@cache
def _host_step() -> Any:
    """Return the C function, which lives as long as the process."""
    return c_function("int32(int64)")(_entry)
