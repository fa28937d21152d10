"""Engine versions that an adapter supports, and the handling of other versions."""

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
"""Version string of an engine that does not know its own version."""

Judgement = Literal["supported", "too old", "untested"]

_log = logging.getLogger("specplug")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The versions of an engine that an adapter supports.

    Attributes:
        engine: the engine's name as users write it.
        oldest, newest: both inclusive, with as many parts as versions are compared by.
        compared: those of them that no test runs, but whose sources have every seam.
    """

    engine: str
    oldest: Version
    newest: Version
    compared: frozenset[Version] = frozenset()

    def __str__(self) -> str:
        return f"{self.engine} {'.'.join(map(str, self.oldest))} to {'.'.join(map(str, self.newest))}"

    def parse(self, version: str) -> Version | None:
        """Return the compared parts of a version such as "0.32.1rc2", or None if it lacks them."""
        count = len(self.newest)
        found = re.match(r"\.".join([r"(\d+)"] * count), version)
        return None if found is None else tuple(map(int, found.groups()))

    def assumed(self, version: str) -> Version:
        """Return the version whose seams are checked; for an unknown version, the newest."""
        return self.parse(version) or self.newest

    def judge(self, version: str) -> Judgement:
        """Return the adapter's judgement of a version."""
        found = self.parse(version)
        if found is None or found > self.newest:
            return "untested"
        return "too old" if found < self.oldest else "supported"

    @property
    def remedy(self) -> str:
        """Return the remedy for an unsupported version."""
        return f"Install a supported version: {self}"


def is_optional(seam: Seam, optional: Mapping[str, str]) -> bool:
    """Return whether only optional parts of an adapter use a seam."""
    return set(seam.where) <= optional.keys()


class Support:
    """Checks of the imported engine in an adapter's processes.

    Args:
        versions: the versions that the adapter supports.
        seams: all seams that the adapter uses.
        optional: parts of the adapter without which requests are still served correctly, each with the features that
            are then off.
        who: the adapter's name, for messages.
        installed: returns the engine's version in this process, `UNKNOWN` if it does not know its own.

    Attributes:
        require: `check`, once per process and part.
        available: `look`, once per process and part.
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
        """Raise an error if the engine is too old or one of its seams has moved.

        An engine newer than those tested, or one that does not know its version, is accepted with a warning as long as
        every seam holds.

        Args:
            where: the part of the adapter that calls; its seams are imported and compared.

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
        """Return whether an optional part can be used; if its seams have moved, log one warning and return False."""
        gone = self.moved(where)
        if gone:
            text = "%s: %s has moved: %s; found %s %s; expected %s. The server runs; off: %s"
            engine = self._versions.engine
            what = (self._who, engine, "; ".join(gone), engine, self._installed(), self._versions)
            _log.warning(text, *what, self._optional[where])
        return not gone

    def moved(self, where: str, find: Find = imported) -> list[str]:
        """Return the problems, in this process's engine, of the seams that one part of the adapter uses."""
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
