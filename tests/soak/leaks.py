"""Resources of a server's processes, read from /proc while it serves, and whether they stay flat.

A server warms up, so its start does not count: the median of the second quarter of the requests is compared with that
of the last quarter.  Slots follow the load; none may be occupied when the load is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

TOLERANCES = {"threads": 2.0, "files": 6.0, "connections": 16.0}
"""Growth that is no leak; as many connections come and go with the load, more than requests that run at once."""

LEAST_SAMPLES = 40
"""Fewer samples judge no memory, and may judge nothing: a short run is all warm-up."""

ESTABLISHED, CLOSE_WAIT = "01", "08"
"""States of a connection in /proc/net/tcp."""

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources of all processes of one server at one time.

    Attributes:
        requests: that had been answered by then.
        memory, by_process: resident bytes; pages that processes share count once for each.
        files: open files, sockets and pipes, without `connections`.
        connections: of clients; they follow the load, too.
        slots: occupied slots of specplug, and requests that it holds as preempted.
    """

    requests: int
    memory: int
    threads: int
    files: int
    slots: int
    connections: int = 0
    by_process: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians of one resource in the second and in the last quarter of a run, which may exceed it by the tolerance.

    Where that is None, the growth is not judged.
    """

    name: str
    early: float
    late: float
    tolerance: float | None
    per_request: float

    @property
    def is_flat(self) -> bool:
        """Whether it has grown by no more than the tolerance."""
        return self.tolerance is None or self.late - self.early <= self.tolerance


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Compare the quarters of a run, by its requests: a server that waits for the last of them is sampled often.

    There is nothing to compare where one of the two quarters has no sample.
    """
    total = samples[-1].requests if samples else 0
    second = [sample for sample in samples if total <= 4 * sample.requests < 2 * total]
    last = [sample for sample in samples if 4 * sample.requests >= 3 * total]
    if not second:
        return []
    requests = max(1.0, median(s.requests for s in last) - median(s.requests for s in second))
    found = []
    for name in ("memory", "threads", "files", "connections"):
        early, late = (float(median(getattr(s, name) for s in part)) for part in (second, last))
        found.append(Growth(name, early, late, tolerance(name, early, len(samples)), (late - early) / requests))
    return found


def tolerance(name: str, early: float, samples: int) -> float | None:
    """Return how much a resource may grow between the two quarters.

    Memory: 24 MiB and one percent, for caches that are still filling and for the allocators' fragments.
    """
    if name == "memory":
        return 24 * MIB + early / 100 if samples >= LEAST_SAMPLES else None
    return TOLERANCES[name]


def processes(session: int) -> dict[int, int]:
    """Return the processes of a session that run, and the number of threads of each."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _read(folder / "stat")):
            fields = stat.rpartition(")")[2].split()  # a process may be called anything, with blanks and brackets
            if int(fields[3]) == session and fields[0] not in "ZX":
                found[int(folder.name)] = int(fields[17])
    return found


def sample(session: int, port: int, requests: int, slots: int) -> Sample:
    """Read the resources of all processes of a session, whose server listens on `port`."""
    running = processes(session)
    memory = {pid: int((_read(Path(f"/proc/{pid}/statm")) or "0 0").split()[1]) * PAGE for pid in running}
    named = {f"{pid} {_read(Path(f'/proc/{pid}/comm')).strip()}": size for pid, size in memory.items()}
    files = [name for pid in running for name in _files(pid)]
    served = _accepted(port)
    connections = sum(name in served for name in files)
    return Sample(
        requests, sum(memory.values()), sum(running.values()), len(files) - connections, slots, connections, named
    )


def _files(pid: int) -> Iterator[str]:
    """Yield what the open files of a process are; sockets are "socket:[inode]"."""
    with suppress(OSError):  # it has ended
        for place in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield os.readlink(place)


def _accepted(port: int) -> set[str]:
    """Return the sockets of a port that clients are connected to, whoever holds them, or were until they left."""
    found = set()
    for line in (_read(Path("/proc/net/tcp")) + _read(Path("/proc/net/tcp6"))).splitlines():
        fields = line.split()
        if fields[3] in (ESTABLISHED, CLOSE_WAIT) and fields[1].endswith(f":{port:04X}"):
            found.add(f"socket:[{fields[9]}]")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def occupied(status: Mapping[str, object]) -> int:
    """Return how many requests the workers hold, running or preempted, by `GET /specplug/status`."""
    engines: list[dict] = status["engines"]  # type: ignore[assignment]
    slots = [worker["slots"] for engine in engines for worker in engine["workers"] if "slots" in worker]
    assert slots, "no worker reports its slots"
    return sum(each["occupied"] + each["preempted"] for each in slots)
