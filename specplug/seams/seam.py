"""Seam: one symbol of an engine, and the properties of it that an adapter relies on."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seam:
    """One symbol and the properties of it that an adapter relies on.

    Attributes:
        module, name: the symbol's module and dotted name; an empty name is the module itself.
        where: the parts of the adapter that use it, by the adapter's names for them.
        takes: the leading parameters of its signature, without ``self``.
        named: parameters at any position of its signature.
        holds: attributes of a class, its instances or a module; ``__dict__``: instances accept further attributes.
        since, until: the first and last versions that have it, both inclusive.
    """

    module: str
    name: str
    where: tuple[str, ...]
    takes: tuple[str, ...]
    named: tuple[str, ...]
    holds: tuple[str, ...]
    since: Version
    until: Version | None

    def applies(self, version: Version) -> bool:
        """Return whether a version has the seam."""
        return self.since <= version and (self.until is None or version <= self.until)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}" if self.name else self.module


def seam(
    symbol: str,
    *where: str,
    takes: str = "",
    named: str = "",
    holds: str = "",
    since: Version = (),
    until: Version | None = None,
) -> Seam:
    """Build a seam from ``module:name`` or ``module``; lists of names are strings separated by spaces."""
    module, _, name = symbol.partition(":")
    lists = {"takes": tuple(takes.split()), "named": tuple(named.split()), "holds": tuple(holds.split())}
    return Seam(module, name, where, **lists, since=since, until=until)


_ROW = re.compile(
    r"(?P<symbol>[\w.]+(?::[\w.]+)?)(?:\((?P<signature>[^)]*)\))?(?P<holds>:[ \w]*?)?"
    r"(?: (?P<bound>[<>]=) (?P<version>[\d.]+))?"
)


def table(text: str) -> tuple[Seam, ...]:
    """Return the seams that a text lists.

    A row names a symbol with its signature or, after a colon, its attributes, and if only some versions have it the
    first or the last of them.  Rows that are indented belong to the module above them.  Lines that are indented by more
    go on with the row above.  A section begins with the parts of the adapter that use its symbols::

        [worker, status]
        engine.module: attribute attribute
          Class: attribute attribute
          Class.method(first, second, *, keyword) >= 0.33
        engine.other:function(first)
    """
    rows: list[Seam] = []
    where: tuple[str, ...] = ()
    module = ""
    for line in re.sub(r"\n {4,}", " ", text).splitlines():
        if line.startswith("["):
            where = tuple(line.strip("[]").split(", "))
        elif line and not line.startswith("#"):
            row = _ROW.fullmatch(f"{module}:{line.strip()}" if line.startswith(" ") else line)
            if row is None:
                raise ValueError(f"not a row of a table of seams: {line!r}")
            symbol, holds = row["symbol"], row["holds"]
            module = symbol.partition(":")[0]
            if ":" in symbol or holds is not None:
                takes, _, named = (row["signature"] or "").replace(",", "").partition("*")
                version = tuple(map(int, row["version"].split("."))) if row["version"] else ()
                bounds = {} if not version else {"since" if row["bound"] == ">=" else "until": version}
                rows.append(seam(symbol, *where, takes=takes, named=named, holds=(holds or ":")[1:], **bounds))
    return tuple(rows)
