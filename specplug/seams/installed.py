"""What ``specplug doctor`` says of an installed engine.  It is read, not imported: that takes seconds."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from specplug.plugins.specs import CheckResult
from specplug.seams.seam import Seam
from specplug.seams.sources import moved_in
from specplug.seams.support import UNKNOWN, Range, is_optional


def package_folder(package: str) -> Path | None:
    """Return an installed package's folder, None where it is not installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def version_in(folder: Path) -> str:
    """Return the version that a package folder's own file names, `UNKNOWN` without one."""
    file = folder / "_version.py"
    if file.is_file():
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="__version__"), *_], value=ast.Constant(value=str(version))):
                    return version
    return UNKNOWN


def version_result(versions: Range, version: str) -> CheckResult:
    """Say whether a version is supported."""
    judgement = versions.judge(version)
    name = f"{versions.engine} {version}"
    if judgement == "too old":
        return CheckResult("fail", f"{name} is too old; expected {versions}", versions.remedy)
    if judgement == "untested":
        summary = f"{name} is untested; tested: {versions}"
        return CheckResult("warn", summary, f"{versions.remedy}, or go on if every seam is found")
    return CheckResult("ok", f"{name} (supported: {versions})")


def seams_result(
    versions: Range, version: str, folder: Path, seams: Sequence[Seam], optional: Mapping[str, str]
) -> CheckResult:
    """Say whether an installed engine has every seam.

    Args:
        versions: those that the adapter supports.
        version: the installed one.
        folder: its package folder.
        seams: everything that the adapter uses.
        optional: parts of the adapter that a server starts without, each with what is off then.
    """
    name, assumed = f"{versions.engine} {version}", versions.assumed(version)
    moved = moved_in(folder.parent, assumed, [seam for seam in seams if not is_optional(seam, optional)])
    off = []
    for part, what in optional.items():
        gone = moved_in(folder.parent, assumed, [seam for seam in seams if part in seam.where])
        off += [f"{'; '.join(gone)} (off: {what})"] if gone else []
    if moved or off:
        summary = f"{name} has moved: {'; '.join([*moved, *off])}"
        return CheckResult("fail" if moved else "warn", summary, versions.remedy)
    return CheckResult("ok", f"all {len(seams)} seams found")


def entry_point_result(
    engine: str, group: str, name: str, target: str, *, allowing: str, empty_allows: bool
) -> CheckResult:
    """Say whether an engine loads specplug.

    Args:
        engine: its name, for messages.
        group, name, target: of the entry point.
        allowing: the variable that names the plug-ins to be loaded; all are without it.
        empty_allows: whether all are loaded, too, when it is empty.
    """
    found = [entry.value for entry in importlib.metadata.entry_points(group=group) if entry.name == name]
    if target not in found:
        summary = f"{engine} does not load specplug: no entry point {name!r} in the group {group!r}"
        return CheckResult("fail", summary, f"Reinstall specplug into {engine}'s environment")
    allowed = os.environ.get(allowing)
    restricts = allowed is not None and not (empty_allows and not allowed)
    if allowed is not None and restricts and name not in (each.strip() for each in allowed.split(",")):
        summary = f"{allowing}={allowed!r} keeps {engine} from loading specplug"
        return CheckResult("fail", summary, f"Add {name!r} to it, or unset it")
    return CheckResult("ok", f"{engine} loads specplug (entry point {name!r} of {group!r})")
