"""Records of arrays that kernels take as one argument, because thirty separate arrays cost microseconds per call.

Python holds numba's structures by reference.  Kernels work on borrowed views of them: counting references to their
arrays would cost as much, at every access, as the access itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.experimental import structref
from numba.experimental.jitclass.base import imp_dtor
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model

from specplug.match.cpu.compiled import compiled


class RecordType(types.StructRef):  # type: ignore[misc]
    """The numba type of a record."""

    def preprocess_fields(self, fields: Any) -> Any:
        """Drop literal types of fields, so that equal records have one type."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)  # type: ignore[no-untyped-call]


class Record(structref.StructRefProxy):  # type: ignore[misc]
    """A record in Python; see `record`."""


structref.register(RecordType)  # type: ignore[no-untyped-call]
structref.define_boxing(RecordType, Record)  # type: ignore[no-untyped-call]


def record(**fields: Any) -> Record:
    """Return a record of these fields: arrays, numbers and other records.

    Numba's own constructors would be compiled anew in every process, which takes seconds.
    """
    return _record(_named(tuple(fields)), tuple(fields.values()))


@cache
def _named(names: tuple[str, ...]) -> npt.NDArray[np.void]:
    """Return an array whose type has the names of a record's fields, because kernels know types only."""
    return np.empty(0, [(name, np.uint8) for name in names])


def _construct(_typing: Any, named: Any, values: Any) -> Any:
    names = tuple(named.dtype.fields)
    kind = RecordType(list(zip(names, values.types, strict=True)))  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        payload = context.data_model_manager[kind.get_data_type()].get_value_type()  # type: ignore[no-untyped-call]
        size = context.get_constant(types.uintp, context.get_abi_sizeof(payload))
        free = imp_dtor(context, builder.module, kind)  # type: ignore[no-untyped-call]
        utils: Any = structref._Utils(context, builder, kind)  # type: ignore[no-untyped-call]
        made = utils.new_struct_ref(context.nrt.meminfo_alloc_dtor(builder, size, free))
        fields = utils.get_data_struct(made._getvalue())
        for place, (name, given) in enumerate(zip(names, values.types, strict=True)):
            value = context.cast(builder, builder.extract_value(arguments[1], place), given, kind.field_dict[name])
            context.nrt.incref(builder, kind.field_dict[name], value)
            setattr(fields, name, value)
        return made._getvalue()

    return kind(named, values), generate  # type: ignore[no-untyped-call]


_constructed: Any = intrinsic(_construct)


@compiled
def _record(named: npt.NDArray[np.void], values: tuple[Any, ...]) -> Record:
    return _constructed(named, values)  # type: ignore[no-any-return]


class BorrowedType(types.Type):  # type: ignore[misc]
    """The numba type of a borrowed view of a record: a pointer to its fields."""

    def __init__(self, record: RecordType) -> None:
        self.record = record
        super().__init__(name=f"borrowed({record.name})")


register_model(BorrowedType)(models.OpaqueModel)  # type: ignore[no-untyped-call]


def _borrow(_typing: Any, record: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = structref._Utils(context, builder, signature.args[0]).get_data_pointer(arguments[0])  # type: ignore[no-untyped-call]
        return builder.bitcast(data, context.get_value_type(signature.return_type))

    return BorrowedType(record)(record), generate  # type: ignore[no-untyped-call]


borrowed: Any = intrinsic(_borrow)
"""Inside kernels, `borrowed(record)` is a view of a record: the same fields, without reference counting.

The kernel's caller keeps the record alive, and the fields of a record are never replaced.  A kernel must not return a
borrowed array, which has no owner.
"""


def _address_of(_typing: Any, view: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], context.get_value_type(signature.return_type))

    return types.int64(view), generate  # type: ignore[no-untyped-call]


def _borrowed_at(_typing: Any, like: Any, _address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return like(like, types.int64), generate


address_of: Any = intrinsic(_address_of)
"""Inside kernels, `address_of(view)` is the address of a borrowed view, for `borrowed_at`."""

borrowed_at: Any = intrinsic(_borrowed_at)
"""Inside kernels, `borrowed_at(like, address)` is the borrowed view at an address, of the type of the view `like`."""


@compiled
def address(record: Any) -> int:
    """Return the address of a record's fields, for `borrowed_at`; the record's owner keeps it alive."""
    return address_of(borrowed(record))  # type: ignore[no-any-return]


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    """Types of a borrowed view's fields: a record in it is borrowed too."""

    key = BorrowedType

    def generic_resolve(self, value: Any, attr: Any) -> Any:  # type: ignore[override]
        found = value.record.field_dict.get(attr)
        return BorrowedType(found) if isinstance(found, RecordType) else found


@lower_getattr_generic(BorrowedType)  # type: ignore[untyped-decorator, no-untyped-call]
def _read(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    payload = kind.record.get_data_type()
    pointer = builder.bitcast(value, context.data_model_manager[payload].get_value_type().as_pointer())
    fields = cgutils.create_struct_proxy(payload)(context, builder, ref=pointer)  # type: ignore[no-untyped-call]
    found = getattr(fields, name)
    field = kind.record.field_dict[name]
    if isinstance(field, RecordType):
        data = structref._Utils(context, builder, field).get_data_pointer(found)  # type: ignore[no-untyped-call]
        return builder.bitcast(data, context.get_value_type(BorrowedType(field)))
    if isinstance(field, types.Array):
        array = context.make_array(field)(context, builder, found)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        return array._getvalue()
    return found
