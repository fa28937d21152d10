"""Entries for C code: `ingest` and `propose` of `addresses` for threads that Python does not know, such as a driver's.

Numba's wrapper of a C callback takes the GIL to report an exception, so its code is only free of the GIL if numba can
see that nothing raises.  It cannot see that through calls of large kernels.  These entries return the kernel's status
instead of passing its exception on, which leaves nothing to report; no kernel below them raises anything.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import carray, typeof  # type: ignore[attr-defined]
from numba.core import types
from numba.extending import intrinsic

from specplug.match.cpu.addresses import ingest, propose
from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.pointers import int64_at
from specplug.match.cpu.records import BorrowedType

ENTRY_ARGUMENTS = 10
"""Numbers that an entry takes: the address of a state, then the arguments of `ingest_at` or `propose_at`."""


@cache
def _state_type() -> Any:
    from specplug.match.cpu.lookup import Lookup, LookupOptions

    return typeof(Lookup(1, 2, 1, LookupOptions(response_tokens=0), trees=False).state)  # type: ignore[no-untyped-call]


def _state_at(_typing: Any, _address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return BorrowedType(_state_type())(types.int64), generate  # type: ignore[no-untyped-call]


_state: Any = intrinsic(_state_at)


@compiled
def _ingest(arguments: int) -> None:
    n = carray(int64_at(arguments), ENTRY_ARGUMENTS)
    ingest(_state(n[0]), n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9])


@compiled
def _propose(arguments: int) -> None:
    n = carray(int64_at(arguments), ENTRY_ARGUMENTS)
    propose(_state(n[0]), n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9])


def _status_of(kernel: Any) -> Any:
    """Return an intrinsic that calls a kernel, which takes an int64, and returns its status."""

    @intrinsic  # type: ignore[untyped-decorator]
    def entry(_typing: Any, _arguments: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kernel.compile((types.int64,))
            built = kernel.overloads[types.int64,]
            context.active_code_library.add_linking_library(built.library)
            status, _ = context.call_internal_no_propagate(builder, built.fndesc, built.signature, arguments)
            return builder.sext(status.code, context.get_value_type(types.int64))

        return types.int64(types.int64), generate

    return entry


ingest_entry, propose_entry = _status_of(_ingest), _status_of(_propose)
"""Inside C callbacks, `ingest_entry(address)` runs `ingest_at` on the `ENTRY_ARGUMENTS` int64 numbers at an address.

It returns 0, or another number if a kernel raised an exception after all, which is dropped.  `propose_entry` is alike.
`Lookup.state_address` gives the first number.
"""
