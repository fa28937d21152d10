"""Checks of an installed engine for ``specplug doctor``.  Another process imports it, because that takes seconds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from specplug.plugins.specs import CheckResult
from specplug.seams.support import MARK, UNKNOWN, Range

IMPORT_PATIENCE = 120.0
"""Seconds that an engine may take to import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine that may be installed beside specplug.

    Attributes:
        package: its package.
        versions: the versions that the adapter supports.
        seams: the adapter's module whose `support` checks its seams.
        group, target: the group and the target of the entry point "specplug" by which it loads specplug.
        allowing: the environment variable that lists the plug-ins to load; if unset, all are loaded.
        empty_allows: whether all are also loaded if the variable is empty.
        statement: imports what serves.
        remedy: what to do if it does not import.
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
        status, moved = "fail" if found["moved"] else "warn", "; ".join([*found["moved"], *found["off"]])
        return [imports, CheckResult(status, f"{engine} has moved: {moved}", self.versions.remedy)]

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
