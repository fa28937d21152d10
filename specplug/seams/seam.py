"""What a seam is: one symbol of an engine's, and what an adapter relies on of it."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seam:
    """What is relied on of one symbol.

    Attributes:
        module, name: where it stands; an empty name is the module itself.
        where: the parts of the adapter that use it, by the names that the adapter gives them.
        takes: the parameters that its signature begins with, ``self`` left out.
        named: parameters that it takes anywhere.
        holds: attributes of a class, its instances or a module; ``__dict__``: instances take further attributes.
        since, until: the versions that have it, both included.
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
        """Return whether a version has it."""
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
    """Make a seam of ``module:name`` or ``module``; names are listed in one string, separated by spaces."""
    module, _, name = symbol.partition(":")
    lists = {"takes": tuple(takes.split()), "named": tuple(named.split()), "holds": tuple(holds.split())}
    return Seam(module, name, where, **lists, since=since, until=until)
