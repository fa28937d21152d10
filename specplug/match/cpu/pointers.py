"""Access to memory by address inside kernels; the owner of an address must keep its memory alive."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


def _pointer_to(kind: Any) -> Any:
    """Return an intrinsic that converts an address to a pointer to elements of a numba type."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_typing: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate  # type: ignore[no-untyped-call]

    return pointer


int32_at, int64_at = _pointer_to(types.int32), _pointer_to(types.int64)
float32_at, float64_at, uint8_at = map(_pointer_to, (types.float32, types.float64, types.uint8))
"""Inside kernels, `carray(int32_at(address), shape)` is the array at that address; the others work alike."""
