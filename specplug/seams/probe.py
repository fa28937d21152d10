"""Comparison of seams with an imported engine; `sources` compares them with sources that are not imported."""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from specplug.seams.seam import Seam


class Symbol(Protocol):
    """One of an engine's modules, classes, functions or values, as a probe sees it."""

    def parameters(self) -> list[str] | None:
        """Return the names of a function's parameters in order, without ``self``; None if it is not a function."""

    def holds(self, name: str) -> bool:
        """Return whether a module or class has the attribute, including those that only its methods assign."""


_STORE, _EXTENDED = dis.opmap["STORE_ATTR"], dis.opmap["EXTENDED_ARG"]

Find = Callable[[str, str], Symbol | None]
"""Called with a module's name and a dotted name inside it ("" is the module itself)."""


def problems(seam: Seam, find: Find) -> Iterator[str]:
    """Yield the problems of a seam, one line each, beginning with the seam's name."""
    symbol = find(seam.module, seam.name)
    if symbol is None:
        yield f"{seam} is gone"
        return
    if seam.takes or seam.named:
        yield from _parameter_problems(seam, symbol.parameters())
    for name in seam.holds:
        if not symbol.holds(name):
            yield f"{seam} no longer has {name!r}"


def _parameter_problems(seam: Seam, found: list[str] | None) -> Iterator[str]:
    if found is None:
        yield f"{seam} is no longer a function"
        return
    signature = f"({', '.join(found)})"
    if found[: len(seam.takes)] != list(seam.takes):
        yield f"{seam} no longer begins with ({', '.join(seam.takes)}): found {signature}"
    for name in seam.named:
        if name not in found:
            yield f"{seam} no longer takes {name!r}: found {signature}"


def imported(module: str, name: str) -> Symbol | None:
    """Find a symbol in this process, importing its module."""
    try:
        target: Any = importlib.import_module(module)
    except ImportError:
        return None
    owner = None
    for part in name.split(".") if name else ():
        owner = target
        target = getattr(owner, part, None)
        if target is None or target is getattr(object, part, None):  # attributes of `object` exist on every class
            return None
    return _Imported(target, owner, name.rpartition(".")[2])


class _Imported:
    def __init__(self, target: Any, owner: Any, name: str) -> None:
        self._target = target
        self._bound = inspect.isclass(owner) and not isinstance(inspect.getattr_static(owner, name), staticmethod)

    def parameters(self) -> list[str] | None:
        target = inspect.unwrap(self._target)  # hooks, including specplug's own, set `__wrapped__`
        if not callable(target):
            return None
        names = list(inspect.signature(target).parameters)
        takes_self = self._bound and not inspect.ismethod(self._target)  # a bound class method's signature lacks `cls`
        return names[1:] if takes_self else names

    def holds(self, name: str) -> bool:
        target = self._target
        if not inspect.isclass(target):
            return hasattr(target, name)
        if name == "__dict__":
            return bool(target.__dictoffset__)
        return hasattr(target, name) or any(_declares(cls, name) for cls in target.__mro__[:-1])


_FIELDS = ("__dataclass_fields__", "__pydantic_fields__", "__annotations__")


def _declares(cls: type, name: str) -> bool:
    """Return whether a class has the attribute as a field or assigns it in one of its methods."""
    if any(name in cls.__dict__.get(fields, ()) for fields in _FIELDS):
        return True
    return any(name in code.co_names and name in _stored(code) for code in _method_codes(cls))


@functools.cache
def _method_codes(cls: type) -> tuple[Any, ...]:
    """Return the bytecode of a class's methods, the constructor first, since it assigns most attributes."""
    methods = sorted(vars(cls).items(), key=lambda item: item[0] != "__init__")
    plain = (getattr(method, "fget", None) or getattr(method, "__func__", method) for _, method in methods)
    codes = (getattr(inspect.unwrap(method), "__code__", None) for method in plain if callable(method))
    return tuple(code for code in codes if code is not None)


@functools.cache
def _stored(code: Any) -> frozenset[str]:
    """Return the attributes that a function assigns, as `dis` would find them in ten times the time."""
    found, high = set(), 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if operation == _STORE:
            found.add(code.co_names[high | low])
        high = (high | low) << 8 if operation == _EXTENDED else 0
    return frozenset(found)
