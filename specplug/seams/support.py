"""Engine versions that an adapter supports, and what is done about others and about seams that have moved."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specplug.errors import EngineError
from specplug.plugins.specs import CheckResult
from specplug.seams.seam import Seam, Version, problems

UNKNOWN = "dev"
"""Version string of an engine that does not know its own version."""

MARK = "specplug-seams:"
"""Begins the line that `Support.report` prints."""

IMPORT_PATIENCE = 120.0
"""Seconds that an engine may take to import."""

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
        self._versions = versions
        self._seams = seams
        self._who = who
        self._installed = installed
        self._optional = optional
        self.require = functools.cache(self._require)
        self.available = functools.cache(self._available)
        self.warn_untested = functools.cache(self._warn_untested)

    def moved_seams(self, *parts: str) -> list[str]:
        """Return what has moved, in this process's engine, among the seams that parts of the adapter use."""
        return [line for seam in self._applying() if not {*parts}.isdisjoint(seam.where) for line in problems(seam)]

    def report(self) -> None:
        """Print, as JSON, how many seams there are and what has moved of needed and of optional parts.

        For `InstalledEngine`, which imports the engine in another process.
        """
        needed = {part for seam in self._seams for part in seam.where} - self._optional.keys()
        off = {part: self.moved_seams(part) for part in self._optional}
        described = [f"{'; '.join(gone)} (off: {self._optional[part]})" for part, gone in off.items() if gone]
        reported = {"seams": len(self._applying()), "moved": self.moved_seams(*needed), "off": described}
        print(f"\n{MARK}{json.dumps(reported)}", flush=True)

    def _applying(self) -> list[Seam]:
        version = self._versions.parse(self._installed()) or self._versions.newest
        return [seam for seam in self._seams if seam.applies(version)]

    def _require(self, part: str) -> None:
        version = self._installed()
        engine = self._versions.engine
        judgement = self._versions.judge(version)
        if judgement == "too old":
            raise self._refusal(f"this {engine} is too old", version)
        gone = self.moved_seams(part)
        if gone:
            raise self._refusal(f"{engine} has moved: {'; '.join(gone)}", version)
        if judgement == "untested":
            self.warn_untested(version)

    def _available(self, part: str) -> bool:
        gone = self.moved_seams(part)
        engine = self._versions.engine
        if gone:
            text = "%s: %s has moved: %s; found %s %s; expected %s. The server runs; off: %s"
            what = (self._who, engine, "; ".join(gone), engine, self._installed(), self._versions)
            _log.warning(text, *what, self._optional[part])
        return not gone

    def _warn_untested(self, version: str) -> None:
        text = "specplug was tested with %s, not with %s; every seam that it uses is there"
        _log.warning(text, self._versions, version)

    def _refusal(self, what: str, version: str) -> Exception:
        found = f"{self._versions.engine} {version}"
        remedy = self._versions.remedy
        return EngineError.build(what, who=self._who, found=found, expected=str(self._versions), remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine that may be installed beside specplug.

    Attributes:
        seams: the adapter's module whose `support` checks its seams.
        group, target: the group and the target of the entry point "specplug" by which it loads specplug.
        allowing: the environment variable that lists the plug-ins to load; if unset, all are loaded.
        empty_allows: whether all are also loaded if the variable is empty.
        statement: imports what serves; `remedy` says what to do if it fails.
    """

    package: str
    versions: Range
    seams: str
    group: str
    target: str
    allowing: str
    empty_allows: bool
    statement: str
    remedy: str

    @property
    def folder(self) -> Path | None:
        """Its package folder, or None if it is not installed."""
        spec = importlib.util.find_spec(self.package)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent

    def check(self) -> list[CheckResult]:
        """Report whether it is supported and loads specplug."""
        if self.folder is None:
            missing = f"{self.versions.engine} is not installed: its adapter cannot run"
            return [CheckResult("warn", missing, f"Install {self.versions}")]
        return [version_result(self.versions, version_in(self.folder)), self.check_entry_point()]

    def check_import(self) -> list[CheckResult]:
        """Report whether it imports and has every seam, in another process; return nothing if it is not installed."""
        if self.folder is None:
            return []
        engine = self.versions.engine
        command = [sys.executable, "-c", f"{self.statement}; from {self.seams} import support; support.report()"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_PATIENCE)
        except subprocess.TimeoutExpired:
            return [CheckResult("warn", f"{engine} did not import within {IMPORT_PATIENCE:g} s", "Import it by hand")]
        reported = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
        if not reported:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return [CheckResult("fail", f"{engine} does not import: {last}", self.remedy)]
        found = json.loads(reported[-1])
        imports = CheckResult("ok", f"{engine} imports")
        if not found["moved"] and not found["off"]:
            return [imports, CheckResult("ok", f"all {found['seams']} seams found")]
        status = "fail" if found["moved"] else "warn"
        moved = "; ".join([*found["moved"], *found["off"]])
        return [imports, CheckResult(status, f"{engine} has moved: {moved}", self.versions.remedy)]

    def check_entry_point(self) -> CheckResult:
        """Report whether it loads specplug."""
        engine = self.versions.engine
        name = "specplug"
        found = [entry.value for entry in importlib.metadata.entry_points(group=self.group) if entry.name == name]
        if self.target not in found:
            summary = f"{engine} does not load specplug: no entry point {name!r} in the group {self.group!r}"
            return CheckResult("fail", summary, f"Reinstall specplug into {engine}'s environment")
        allowed = os.environ.get(self.allowing)
        restricts = allowed is not None and not (self.empty_allows and not allowed)
        if allowed is not None and restricts and name not in (each.strip() for each in allowed.split(",")):
            summary = f"{self.allowing}={allowed!r} keeps {engine} from loading specplug"
            return CheckResult("fail", summary, f"Add {name!r} to it, or unset it")
        return CheckResult("ok", f"{engine} loads specplug (entry point {name!r} of {self.group!r})")


def version_in(folder: Path) -> str:
    """Return the version from a package folder's version file, or `UNKNOWN` without one."""
    file = folder / "_version.py"
    found = re.search(r"^__version__ = .*[\"'](.+)[\"']", file.read_text(), re.MULTILINE) if file.is_file() else None
    return found[1] if found else UNKNOWN


def version_result(versions: Range, version: str) -> CheckResult:
    """Return whether a version is supported, as a check result."""
    judgement = versions.judge(version)
    name = f"{versions.engine} {version}"
    if judgement == "too old":
        return CheckResult("fail", f"{name} is too old; expected {versions}", versions.remedy)
    if judgement == "untested":
        summary = f"{name} is untested; tested: {versions}"
        return CheckResult("warn", summary, f"{versions.remedy}, or go on if every seam is found")
    remark = "; no test runs it, its seams were compared" if versions.parse(version) in versions.compared else ""
    return CheckResult("ok", f"{name} (supported: {versions}{remark})")
