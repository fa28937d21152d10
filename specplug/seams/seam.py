"""Seams: symbols of an engine that an adapter relies on, their checks in the imported engine, and hooks.

A seam is what an adapter hooks, overrides or calls, a private attribute, or one that it assigns or may find absent: a
change of these may go unnoticed, or ends a server in the middle of a step.  What it only reads raises by itself.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One symbol and the properties of it that an adapter relies on.

    Attributes:
        module, name: the symbol's module and its dotted name in it.
        where: the parts of the adapter that use it, by the adapter's names for them.
        takes: the leading parameters of its signature, without ``self``.
        named: parameters at any position of its signature.
        holds: attributes of a class or its instances; ``__dict__``: instances accept further attributes.
        since, until: the first and last versions that have it, both inclusive.
        patched: what of it an adapter replaces by a function that may call it: the names, dotted, in its module.
    """

    module: str
    name: str
    where: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    since: Version = ()
    until: Version | None = None
    patched: tuple[str, ...] = ()

    def applies(self, version: Version) -> bool:
        """Return whether a version has the seam."""
        return self.since <= version and (self.until is None or version <= self.until)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


_ROW = re.compile(
    r"(?P<name>!?[\w.]+)(?:\((?P<signature>[^)]*)\))?(?::(?P<holds>[ !\w]+?))?"
    r"(?: (?P<bound>[<>]=) (?P<version>[\d.]+))?"
)


def table(text: str) -> tuple[Seam, ...]:
    """Return the seams that a text lists.

    A row names a symbol with its signature or, after a colon, its attributes, and if only some versions have it the
    first or the last of them.  Rows that are indented belong to the module above them.  Lines that are indented by more
    go on with the row above.  An exclamation mark is before what the adapter patches.  A section begins with the parts
    of the adapter that use its symbols::

        [worker, status]
        engine.module
          Class: attribute !method
          !Class.method(first, second, *, keyword) >= 0.33
        engine.other:function(first)
    """
    rows: list[Seam] = []
    where: tuple[str, ...] = ()
    module = ""
    for line in re.sub(r"\n {4,}", " ", text).splitlines():
        if line.startswith("["):
            where = tuple(line.strip("[]").split(", "))
        elif line and not line.startswith("#"):
            if not line.startswith(" "):
                module, _, line = line.partition(":")
            if line:
                rows.append(_row(module, where, line.strip()))
    return tuple(rows)


def _row(module: str, where: tuple[str, ...], line: str) -> Seam:
    row = _ROW.fullmatch(line)
    if row is None:
        raise ValueError(f"not a row of a table of seams: {line!r}")
    takes, _, named = (row["signature"] or "").replace(",", "").partition("*")
    version = tuple(map(int, row["version"].split("."))) if row["version"] else ()
    name = row["name"].removeprefix("!")
    holds = (row["holds"] or "").split()
    patched = [name] if row["name"] != name else [f"{name}.{each[1:]}" for each in holds if each.startswith("!")]
    return Seam(
        module=module,
        name=name,
        where=where,
        takes=tuple(takes.split()),
        named=tuple(named.split()),
        holds=tuple(each.removeprefix("!") for each in holds),
        since=version if row["bound"] == ">=" else (),
        until=version if row["bound"] == "<=" else None,
        patched=tuple(patched),
    )


def problems(seam: Seam) -> Iterator[str]:
    """Yield what of a seam has moved, one line each, beginning with the seam's name; imports its module."""
    try:
        found: Any = importlib.import_module(seam.module)
    except ImportError as error:
        yield f"{seam} is gone: {error}"
        return
    owner = None
    for part in seam.name.split("."):
        owner = found
        found = getattr(found, part, None)
        if found is None or found is getattr(object, part, None):  # attributes of `object` exist on every class
            yield f"{seam} is gone"
            return
    if seam.takes or seam.named:
        names = _parameters(found, owner, seam.name.rpartition(".")[2])
        signature = f"found ({', '.join(names)})"
        if names[: len(seam.takes)] != list(seam.takes):
            yield f"{seam} no longer begins with ({', '.join(seam.takes)}): {signature}"
        yield from (f"{seam} no longer takes {name!r}: {signature}" for name in seam.named if name not in names)
    yield from (f"{seam} no longer has {name!r}" for name in seam.holds if not _has(found, name))


def _parameters(function: Any, owner: Any, name: str) -> list[str]:
    """Return the names of a function's parameters in order, without ``self``."""
    target = inspect.unwrap(function)  # hooks, including specplug's own, set `__wrapped__`
    names = list(inspect.signature(target).parameters) if callable(target) else []
    is_static = inspect.isclass(owner) and isinstance(inspect.getattr_static(owner, name), staticmethod)
    takes_self = (
        inspect.isclass(owner) and not is_static and not inspect.ismethod(function)
    )  # a class method's is bound
    return names[1:] if takes_self else names


def _has(owner: Any, name: str) -> bool:
    """Return whether a class has an attribute, including those that only its methods assign."""
    if name == "__dict__":
        return bool(owner.__dictoffset__)
    if hasattr(owner, name):
        return True
    line = owner.__mro__[:-1] if inspect.isclass(owner) else ()
    return any(name in inspect.get_annotations(cls) or _assigns(cls, name) for cls in line)


def _assigns(cls: type, name: str) -> bool:
    """Return whether a method of a class assigns an attribute."""
    methods = (getattr(method, "fget", None) or getattr(method, "__func__", method) for method in vars(cls).values())
    codes = (getattr(inspect.unwrap(method), "__code__", None) for method in methods if callable(method))
    return any(
        step.opname == "STORE_ATTR" and step.argval == name
        for code in codes
        if code is not None and name in code.co_names  # `dis` is slow
        for step in dis.get_instructions(code)
    )


def hook(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let a function of a class or module be called as ``around(original, *args, **kwargs)``.

    `around` is a function of a module; a second call with the same one changes nothing.
    """
    original = getattr(owner, name)
    before = getattr(original, "_specplug", ())
    mark = f"{around.__module__}.{around.__qualname__}"
    if mark in before:
        return

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    hooked._specplug = (*before, mark)  # type: ignore[attr-defined]
    is_static = inspect.isclass(owner) and isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(hooked) if is_static else hooked)
