"""Engine versions that an adapter supports, and the handling of other versions and of seams that have moved."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specplug.errors import EngineError
from specplug.seams.seam import Seam, Version, problems

UNKNOWN = "dev"
"""Version string of an engine that does not know its own version."""

MARK = "specplug-seams:"
"""Begins the line that `Support.report` prints."""

_log = logging.getLogger("specplug")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The versions of an engine that an adapter supports.

    Attributes:
        engine: the engine's name as users write it.
        oldest, newest: both inclusive, with as many parts as versions are compared by.
        compared: those of them that no test runs, but in which every seam was found.
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

    def judge(self, version: str) -> Literal["supported", "too old", "untested"]:
        """Return the adapter's judgement of a version."""
        found = self.parse(version)
        if found is None or found > self.newest:
            return "untested"
        return "too old" if found < self.oldest else "supported"

    @property
    def remedy(self) -> str:
        """Return the remedy for an unsupported version."""
        return f"Install a supported version: {self}"


class Support:
    """Checks of the imported engine in an adapter's processes.

    Args:
        versions: the versions that the adapter supports.
        seams: all seams that the adapter uses.
        who: the adapter's name, for messages.
        installed: returns the engine's version in this process, `UNKNOWN` if it does not know its own.
        optional: parts of the adapter without which requests are still served correctly, each with the features that
            are then off.

    Attributes:
        require: raises an error, once per process and part, if the engine is too old or a seam of the part has moved.
            An engine newer than those tested, or one that does not know its version, is accepted with a warning as long
            as every seam holds.
        available: returns whether an optional part can be used; logs one warning if it cannot.
    """

    def __init__(
        self,
        versions: Range,
        seams: Sequence[Seam],
        *,
        who: str,
        installed: Callable[[], str],
        optional: Mapping[str, str],
    ) -> None:
        self._versions, self._seams, self._who, self._installed = versions, seams, who, installed
        self._optional = optional
        self.require = functools.cache(self._require)
        self.available = functools.cache(self._available)
        self.warn_untested = functools.cache(self._warn_untested)

    def moved(self, *parts: str) -> list[str]:
        """Return what has moved, in this process's engine, among the seams that parts of the adapter use."""
        return [line for seam in self._applying() if not {*parts}.isdisjoint(seam.where) for line in problems(seam)]

    def report(self) -> None:
        """Print, as JSON, how many seams there are and what has moved of needed and of optional parts.

        For `specplug.seams.installed`, which imports the engine in another process.
        """
        needed = {part for seam in self._seams for part in seam.where} - self._optional.keys()
        off = {part: self.moved(part) for part in self._optional}
        described = [f"{'; '.join(gone)} (off: {self._optional[part]})" for part, gone in off.items() if gone]
        reported = {"seams": len(self._applying()), "moved": self.moved(*needed), "off": described}
        print(f"\n{MARK}{json.dumps(reported)}", flush=True)

    def _applying(self) -> list[Seam]:
        version = self._versions.parse(self._installed()) or self._versions.newest
        return [seam for seam in self._seams if seam.applies(version)]

    def _require(self, part: str) -> None:
        version, engine = self._installed(), self._versions.engine
        judgement = self._versions.judge(version)
        if judgement == "too old":
            raise self._refusal(f"this {engine} is too old", version)
        gone = self.moved(part)
        if gone:
            raise self._refusal(f"{engine} has moved: {'; '.join(gone)}", version)
        if judgement == "untested":
            self.warn_untested(version)

    def _available(self, part: str) -> bool:
        gone, engine = self.moved(part), self._versions.engine
        if gone:
            text = "%s: %s has moved: %s; found %s %s; expected %s. The server runs; off: %s"
            what = (self._who, engine, "; ".join(gone), engine, self._installed(), self._versions)
            _log.warning(text, *what, self._optional[part])
        return not gone

    def _warn_untested(self, version: str) -> None:
        text = "specplug was tested with %s, not with %s; every seam that it uses is there"
        _log.warning(text, self._versions, version)

    def _refusal(self, what: str, version: str) -> Exception:
        found, remedy = f"{self._versions.engine} {version}", self._versions.remedy
        return EngineError.build(what, who=self._who, found=found, expected=str(self._versions), remedy=remedy)
