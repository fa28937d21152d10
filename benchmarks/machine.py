"""Description of the machine that a benchmark runs on, printed with its figures."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return the CPU's name, the cores that this process may use, and the system."""
    return {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def cpu_name() -> str:
    """Return the CPU's model name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown CPU"


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of packages, None for packages that are not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def in_words(facts: dict[str, Any], threads: int) -> str:
    """Return the machine in one line."""
    return f"{facts['cpu']}, {facts['cores']} cores, CPU only, float32, {threads} thread{'s' * (threads != 1)}"


def one_core() -> None:
    """Keep this process to one core and one thread; before numba and torch are imported."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    import torch

    torch.set_num_threads(1)
