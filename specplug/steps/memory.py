"""Checks of the memory that proposers declare before they are built.

An engine gives all memory that is free at start-up to its key-value cache.  Memory that a proposer has allocated by
then is not free; memory that it allocates later (growing caches, temporaries of a step) must be left out of the cache.
"""

from __future__ import annotations

from pathlib import Path

import torch

from specplug.errors import PluginError

_MEMORY = Path("/proc/meminfo")
_REMEDY = "Choose a smaller draft model, lower num_speculative_tokens or the most requests at a time, or free memory"


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and _MEMORY.exists():
        fields = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return None


def allocated_bytes(device: torch.device) -> int:
    """Return the bytes that this process has allocated on a device; 0 on a CPU, where they are not counted."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def require(name: str, declared: int, found: int | None) -> None:
    """Check that declared memory is available.

    Args:
        name: the proposer's name, or several proposers' names.
        declared, found: bytes needed and bytes free; None means unknown.

    Raises:
        PluginError: `declared` exceeds `found`.
    """
    if found is not None and declared > found:
        raise PluginError.build(
            "not enough memory",
            who=f"proposer {name!r}",
            found=f"{_gib(found)} free ({found} bytes)",
            expected=f"{_gib(declared)}, as it declares ({declared} bytes)",
            remedy=_REMEDY,
        )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB"
