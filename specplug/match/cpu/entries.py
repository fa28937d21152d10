"""Calls of compiled kernels by address, from C code on threads that Python does not know, such as a driver's.

Kernels are called in numba's own calling convention, which returns a status.  Numba's wrappers of kernels are left out:
they take the GIL, if only to report an exception.  A call by address also spares compiling a kernel once more into each
of its callers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.extending import intrinsic

from specplug.match.cpu.compiled import compiled


def _call(_typing: Any, _function: Any, _record: Any, numbers: Any) -> Any:
    count = len(numbers)

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer, number = cgutils.voidptr_t, ir.IntType(64)
        form = ir.FunctionType(ir.IntType(32), [pointer.as_pointer()] * 2 + [pointer] + [number] * count)
        function, record, numbers = arguments
        unused = [cgutils.alloca_once(builder, pointer) for _ in range(2)]  # type: ignore[no-untyped-call]
        further = cgutils.unpack_tuple(builder, numbers)  # type: ignore[no-untyped-call]
        return builder.call(
            builder.inttoptr(function, form.as_pointer()),
            [*unused, builder.inttoptr(record, pointer), *further],
        )

    taken = types.UniTuple(types.int64, count) if count else types.Tuple(())  # type: ignore[no-untyped-call]
    return types.int32(types.int64, types.int64, taken), generate


call_kernel: Any = intrinsic(_call)
"""Inside kernels, `call_kernel(function, record, numbers)` runs the kernel at the address `function` on a record.

`kernel_address` and `handle_of` give the first two arguments, and a kernel may take another number than a record's.
`numbers` is a tuple of the kernel's further arguments, int64.  The call returns 0, or another number if the kernel
raised an exception, which is dropped; no kernel that is called so raises any.
"""


def kernel_address(kernel: Any, *arguments: Any) -> int:
    """Return the address of the code of a kernel that takes arguments like these, records or integers."""
    signature = tuple(map(typeof, arguments))
    kernel.compile(signature)
    built = kernel.overloads[signature]
    return int(built.library.get_pointer_to_function(built.fndesc.llvm_func_name))


def _handle(_typing: Any, record: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])  # type: ignore[no-untyped-call]
        return builder.ptrtoint(value.meminfo, context.get_value_type(signature.return_type))

    return types.int64(record), generate  # type: ignore[no-untyped-call]


_handle_of: Any = intrinsic(_handle)


@compiled
def handle_of(record: Any) -> int:
    """Return the number by which `call_kernel` takes a record, which its owner keeps alive."""
    return _handle_of(record)  # type: ignore[no-any-return]
