"""What kernels do that numba does not offer: access to memory by address, prefetches, atomic operations, C calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.extending import intrinsic

from specplug.types.host_step import Int64Struct


def _at(kind: Any) -> Any:
    """Return an intrinsic that converts an address to a value of a numba type that is a pointer."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_typing: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return kind(types.int64), generate

    return pointer


int32_at, int64_at, float32_at, float64_at, uint8_at = [
    _at(types.CPointer(kind))  # type: ignore[no-untyped-call]
    for kind in (types.int32, types.int64, types.float32, types.float64, types.uint8)
]
"""Inside kernels, `carray(int32_at(address), shape)` is the array at that address; the others work alike."""


def struct_at(struct: type[Int64Struct]) -> Any:
    """Return a function of an address for kernels, which returns the struct there, whose fields they read and set."""
    return _at(from_dtype(np.dtype(struct)))


def _prefetch(_typing: Any, array: Any, _index: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(view.data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call]
        builder.call(ask, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.none(array, types.int64), generate


prefetch: Any = intrinsic(_prefetch)
"""Inside kernels, `prefetch(array, index)` prefetches the cache line of `array[index]`, even beyond its end: walks down
trees spend most of their time waiting for memory."""


_BYTES = 8


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


def _fetch_add(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


def _store(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], _place(context, builder, signature, arguments), "seq_cst", _BYTES)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64), generate


def _load(_typing: Any, array: Any, _index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, arguments), "seq_cst", _BYTES)

    return types.int64(array, types.int64), generate


def _call(_typing: Any, _function: Any, _argument: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        form = ir.FunctionType(ir.IntType(32), [cgutils.voidptr_t])
        function = builder.inttoptr(arguments[0], form.as_pointer())
        return builder.call(function, [builder.inttoptr(arguments[1], cgutils.voidptr_t)])

    return types.int32(types.int64, types.int64), generate


fetch_add: Any = intrinsic(_fetch_add)
"""Inside kernels, `fetch_add(array, index, value)` adds to an element of an int64 array and returns its old value."""

store: Any = intrinsic(_store)
"""Inside kernels, `store(array, index, value)` sets an element after all earlier writes of this thread."""

load: Any = intrinsic(_load)
"""Inside kernels, `load(array, index)` returns an element, and all later reads of this thread come after it."""

call_at: Any = intrinsic(_call)
"""Inside kernels, `call_at(function, pointer)` calls the C function `int (*)(void *)` at an address.

The address is an argument, not part of the code, because compiled code is kept for other processes.
"""
