"""Access to memory by address inside kernels; the owner of an address must keep its memory alive."""

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
