"""Packages that the benchmark needs, on a machine without a package index: missing ones come from wheels in a folder.

They are unpacked into a folder of their own, `build/gpu-packages`, which needs no pip, and not into a virtual
environment.  One that is made from another environment would see the packages of the system's Python, not the
environment's own, such as torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = Path(__file__).parent / "wheels"
TARGET = ROOT / "build" / "gpu-packages"
NEEDED = ("torch", "numpy", "pluggy", "pydantic", "numba")
FOLDERS = (".", "proposers", "policies", "adapters")


def make_importable(wheels: Path = WHEELS, target: Path = TARGET) -> list[str]:
    """Make specplug and what it needs importable in this process; return the names of the wheels that were unpacked.

    Raises:
        SystemExit: a package is missing, and no wheel in the folder provides it.
    """
    target.mkdir(parents=True, exist_ok=True)
    sys.path[:0] = [str((ROOT / folder).resolve()) for folder in FOLDERS]
    sys.path.append(str(target))
    unpacked = []
    if _missing():
        for wheel in sorted(wheels.glob("*.whl")):
            if not _has(_distribution(wheel)):
                zipfile.ZipFile(wheel).extractall(target)
                unpacked.append(wheel.name)
    if missing := _missing():
        raise SystemExit(f"missing: {', '.join(missing)}; put wheels into {wheels}, as benchmarks/gpu/README.md says")
    if not _has("specplug"):
        _describe(target)
    return unpacked


def _missing() -> list[str]:
    importlib.invalidate_caches()
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def _distribution(wheel: Path) -> str:
    return wheel.name.partition("-")[0].replace("_", "-")


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _describe(target: Path) -> None:
    """Let Python find specplug's entry points, as if it were installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = target / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    points = "".join(f"{name} = {place}\n" for name, place in project["entry-points"]["specplug"].items())
    (folder / "entry_points.txt").write_text(f"[specplug]\n{points}", encoding="utf-8")
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    importlib.invalidate_caches()
