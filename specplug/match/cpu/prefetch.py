"""The prefetch primitive: walks down trees spend most of their time waiting for memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


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
"""Inside kernels, `prefetch(array, index)` prefetches the cache line of `array[index]`, even beyond its end."""
