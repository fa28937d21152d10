"""Checks of an installed engine for ``specplug doctor``.  Most read its files, because importing it takes seconds."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specplug.plugins.specs import CheckResult
from specplug.seams.seam import Seam
from specplug.seams.sources import moved_in
from specplug.seams.support import UNKNOWN, Range, is_optional

IMPORT_PATIENCE = 120.0
"""Seconds that an engine may take to import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine that may be installed beside specplug.

    Attributes:
        package: its package.
        versions: the versions that the adapter supports.
        seams: all seams that the adapter uses.
        optional: parts of the adapter that a server can start without, each with the features that are then off.
        group, target: the group and the target of the entry point "specplug" by which it loads specplug.
        allowing: the environment variable that lists the plug-ins to load; if unset, all are loaded.
        empty_allows: whether all are also loaded if the variable is empty.
        statement: imports what serves.
        remedy: what to do if it does not import.
    """

    package: str
    versions: Range
    seams: Sequence[Seam]
    optional: Mapping[str, str]
    group: str
    target: str
    allowing: str
    empty_allows: bool
    statement: str
    remedy: str

    @property
    def folder(self) -> Path | None:
        """Its package folder, or None if it is not installed."""
        return package_folder(self.package)

    def check(self) -> list[CheckResult]:
        """Report whether it is supported, has every seam, and loads specplug."""
        if self.folder is None:
            missing = f"{self.versions.engine} is not installed: its adapter cannot run"
            return [CheckResult("warn", missing, f"Install {self.versions}")]
        version = version_in(self.folder)
        return [version_result(self.versions, version), self.check_seams(version), self.check_entry_point()]

    def check_import(self) -> list[CheckResult]:
        """Report whether it imports, in another process; return nothing if it is not installed."""
        if self.folder is None:
            return []
        engine, command = self.versions.engine, [sys.executable, "-c", self.statement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_PATIENCE)
        except subprocess.TimeoutExpired:
            return [CheckResult("warn", f"{engine} did not import within {IMPORT_PATIENCE:g} s", "Import it by hand")]
        if not done.returncode:
            return [CheckResult("ok", f"{engine} imports")]
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [CheckResult("fail", f"{engine} does not import: {last}", self.remedy)]

    def check_seams(self, version: str) -> CheckResult:
        """Report whether its sources, of this version, have every seam."""
        folder, assumed = self.folder, self.versions.assumed(version)
        assert folder is not None
        needed = [seam for seam in self.seams if not is_optional(seam, self.optional)]
        moved, off = moved_in(folder.parent, assumed, needed), []
        for part, what in self.optional.items():
            gone = moved_in(folder.parent, assumed, [seam for seam in self.seams if part in seam.where])
            off += [f"{'; '.join(gone)} (off: {what})"] if gone else []
        if moved or off:
            summary = f"{self.versions.engine} {version} has moved: {'; '.join([*moved, *off])}"
            return CheckResult("fail" if moved else "warn", summary, self.versions.remedy)
        return CheckResult("ok", f"all {len(self.seams)} seams found")

    def check_entry_point(self) -> CheckResult:
        """Report whether it loads specplug."""
        engine, name = self.versions.engine, "specplug"
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


def package_folder(package: str) -> Path | None:
    """Return an installed package's folder, or None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def version_in(folder: Path) -> str:
    """Return the version from a package folder's version file, or `UNKNOWN` without one."""
    file = folder / "_version.py"
    if file.is_file():
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="__version__"), *_], value=ast.Constant(value=str(version))):
                    return version
    return UNKNOWN


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
