"""Which versions of an engine an adapter serves, and what becomes of the others."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specplug.errors import EngineError
from specplug.seams.probe import Find, imported, problems
from specplug.seams.seam import Seam, Version

UNKNOWN = "dev"
"""What stands for the version of an engine that does not know its own."""

Judgement = Literal["supported", "too old", "untested"]

_log = logging.getLogger("specplug")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The versions of an engine that an adapter supports.

    Attributes:
        engine: its name as a user writes it.
        oldest, newest: both included; as many parts as versions are compared by.
    """

    engine: str
    oldest: Version
    newest: Version

    def __str__(self) -> str:
        return f"{self.engine} {'.'.join(map(str, self.oldest))} to {'.'.join(map(str, self.newest))}"

    def parse(self, version: str) -> Version | None:
        """Return the parts of a version such as "0.32.1rc2" that are compared; None for one that does not say them."""
        count = len(self.newest)
        found = re.match(r"\.".join([r"(\d+)"] * count), version)
        return None if found is None else tuple(map(int, found.groups()))

    def assumed(self, version: str) -> Version:
        """Return the version whose seams are looked for: of one that is not known, those of the newest."""
        return self.parse(version) or self.newest

    def judge(self, version: str) -> Judgement:
        """Say what a version is to the adapter."""
        found = self.parse(version)
        if found is None or found > self.newest:
            return "untested"
        return "too old" if found < self.oldest else "supported"

    @property
    def remedy(self) -> str:
        """What to do about a version that does not serve."""
        return f"Install a supported version: {self}"


def is_optional(seam: Seam, optional: Mapping[str, str]) -> bool:
    """Return whether a seam is used by optional parts of an adapter only."""
    return set(seam.where) <= optional.keys()


class Support:
    """What an adapter's processes ask about the engine that they have imported.

    Args:
        versions: those that the adapter supports.
        seams: everything that it uses of the engine.
        optional: parts of the adapter that requests are served right without, each with what is off then.
        who: the adapter, for messages.
        installed: returns this process's version, `UNKNOWN` where the engine does not know its own.

    Attributes:
        require: `check`, once per process and place.
        available: `look`, once per process and place.
        warn_untested: logs a warning, once per version.
    """

    def __init__(
        self,
        versions: Range,
        seams: Sequence[Seam],
        *,
        who: str,
        installed: Callable[[], str],
        optional: Mapping[str, str] | None = None,
    ) -> None:
        self._versions, self._seams, self._who, self._installed = versions, seams, who, installed
        self._optional = optional or {}
        self.require = functools.cache(self.check)
        self.available = functools.cache(self.look)
        self.warn_untested = functools.cache(self._warn_untested)

    def check(self, where: str) -> None:
        """Refuse to go on with an engine whose seams have moved, or that is too old.

        One newer than those tested, or one that does not know its version, is served with a warning as long as every
        seam holds.

        Args:
            where: which part of the adapter asks; its seams are imported and compared.

        Raises:
            EngineError: a seam has moved, or the version is too old.
        """
        version = self._installed()
        judgement = self._versions.judge(version)
        if judgement == "too old":
            raise self._refusal(f"this {self._versions.engine} is too old", version)
        gone = self.moved(where)
        if gone:
            raise self._refusal(f"{self._versions.engine} has moved: {'; '.join(gone)}", version)
        if judgement == "untested":
            self.warn_untested(version)

    def look(self, where: str) -> bool:
        """Return whether an optional part can be used: one whose seams have moved is off, with one warning."""
        gone = self.moved(where)
        if gone:
            text = "%s: %s has moved: %s; found %s %s; expected %s. The server runs; off: %s"
            engine = self._versions.engine
            what = (self._who, engine, "; ".join(gone), engine, self._installed(), self._versions)
            _log.warning(text, *what, self._optional[where])
        return not gone

    def moved(self, where: str, find: Find = imported) -> list[str]:
        """Return what no longer holds of the seams that one part of the adapter uses, in this process's engine."""
        version = self._versions.assumed(self._installed())
        used = (seam for seam in self._seams if where in seam.where and seam.applies(version))
        return [line for seam in used for line in problems(seam, find)]

    def _warn_untested(self, version: str) -> None:
        text = "specplug was tested with %s, not with %s; every seam that it uses is there"
        _log.warning(text, self._versions, version)

    def _refusal(self, what: str, version: str) -> EngineError:
        found = f"{self._versions.engine} {version}"
        remedy = self._versions.remedy
        error = EngineError.build(what, who=self._who, found=found, expected=str(self._versions), remedy=remedy)
        assert isinstance(error, EngineError)
        return error
