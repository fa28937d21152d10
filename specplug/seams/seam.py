"""Seam: one symbol of an engine, and the properties of it that an adapter relies on."""

from __future__ import annotations

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
