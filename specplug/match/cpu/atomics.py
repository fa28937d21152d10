"""Atomic operations on arrays that several threads use at once, and calls of C functions by address, inside kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

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
