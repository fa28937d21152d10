"""The number of CPU cores that this process may use: by its affinity, and by the quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath

_MOUNT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return how many cores may be busy at once, at least 1; containers often have quotas, of version 1 or 2."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yield the cores that the quotas of this process's control groups allow."""
    try:
        groups = _GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            for folder in _folders(_MOUNT, path):
                yield from _quota(_words(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _folders(_MOUNT / "cpu", path):
                yield from _quota([*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")])


def _folders(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and those above it, whose quotas hold as well; a container sees its own as the mount."""
    below = PurePosixPath(path.lstrip("/"))
    return (mount / each for each in (below, *below.parents) if ".." not in each.parts)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the root group has no quota, and an outer group may be out of sight
        return []


def _quota(words: list[str]) -> Iterator[float]:
    """Yield the cores that a quota and its period, in microseconds, allow; nothing for none, "max" or -1."""
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        yield int(words[0]) / int(words[1])
