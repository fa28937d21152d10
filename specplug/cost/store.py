"""Costs of steps that were measured at start, kept in the cache folder for later starts of the same server."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from specplug.cost.measuring import Measurement
from specplug.types.step import StepCost

logger = logging.getLogger(__name__)

ASSUMED = "assumed"
PROFILED = "profiled by the engine"
_FORMAT = 3
"""Changes with what the costs state and how they are measured, so that those of an earlier version are not used."""

_HIGHEST = 1 << 40
"""Limit on the numbers that are read from a file."""


@dataclass(frozen=True, slots=True)
class StartCosts:
    """Costs of steps as they are known before the first request.

    Attributes:
        costs: the costs; none if they are not known.
        basis: where they are from, in words.
        measured_at: when they were measured, in seconds since 1970; None if they were not.
    """

    costs: tuple[StepCost, ...] = ()
    basis: str = ASSUMED
    measured_at: float | None = None

    def status(self) -> dict[str, Any]:
        """Return what `/specplug/status` shows: basis, age, and the milliseconds of each size."""
        age = None if self.measured_at is None else max(0, round(time.time() - self.measured_at))
        names = ("requests", "tokens", "draft_length", "ms")
        curve = [(cost.requests, cost.tokens, cost.draft_length, round(cost.seconds * 1e3, 4)) for cost in self.costs]
        steps = [dict(zip(names, point, strict=True)) for point in sorted(curve)]
        return {"basis": self.basis, "age_seconds": age, "steps": steps}


UNKNOWN = StartCosts()
"""Costs that are not known yet."""


def cost_file(key: Mapping[str, object]) -> Path:
    """Return the file of the costs of steps under a key, in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = json.dumps([_FORMAT, key], sort_keys=True, default=str)
    return Path(home) / "specplug" / "costs" / f"{hashlib.sha256(named.encode()).hexdigest()[:20]}.json"


def costs_at_start(key: Mapping[str, object], measure: Callable[[], Measurement]) -> StartCosts:
    """Return the costs that were kept under a key; measure and keep them if there are none.

    `key` holds everything that the costs depend on.  A failure to measure leaves the costs unknown, and one to write
    them leaves them for this process; neither stops a server.  Nothing is kept of a busy machine.
    """
    path = cost_file(key)
    if kept := _read(path):
        return kept
    try:
        costs, is_steady = measure()
    except Exception as error:  # whatever an engine raises
        logger.warning("steps could not be timed at start, so their costs are learnt while serving: %s", error)
        return StartCosts()
    if not costs:
        return StartCosts()
    measured = StartCosts(costs, "measured at start", time.time())
    if is_steady:
        _write(path, key, measured)
    else:
        logger.info("costs of steps are not kept: the machine was busy while they were measured")
    return measured


def _read(path: Path) -> StartCosts | None:
    """Return the costs in a file; None without one, or if it is damaged."""
    try:
        found = json.loads(path.read_text())
        costs = tuple([StepCost(**cost) for cost in found["costs"]])
        numbers = [found["measured_at"], *(number for cost in costs for number in astuple(cost)[:-1])]
        is_sound = all(type(number) in (int, float) and 0 <= number < _HIGHEST for number in numbers)
        if not costs or not is_sound or not all(cost.seconds > 0 for cost in costs):
            raise ValueError("no costs")
        return StartCosts(costs, f"from the cache file {path}", found["measured_at"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("costs of steps are measured again, as %s cannot be read: %s", path, error)
        return None


def _write(path: Path, key: Mapping[str, object], measured: StartCosts) -> None:
    """Write a file that appears whole or not at all."""
    content = {"key": key, "measured_at": measured.measured_at, "costs": [asdict(cost) for cost in measured.costs]}
    part = path.with_name(f"{path.stem}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=1, default=str))
        part.replace(path)
    except OSError as error:
        logger.info("costs of steps are measured at each start, as they cannot be kept: %s", error)
        with suppress(OSError):
            part.unlink()
