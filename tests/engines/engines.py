"""Engines that start on first use, run in separate processes, and stop to make room for each other."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.engines.launch import ROOT, Configuration
from tests.engines.processes import Host, HostDied, Nursery, Raised

__all__ = ["Adapter", "Engine", "HostDied", "Pool", "Raised", "Tenant"]

CALL_SECONDS = 600.0
MOST_ALIVE = 5

T = TypeVar("T", bound="Tenant")


class Tenant:
    """A process that has a place in the pool; it starts at its first use, and again after it was ended."""

    def __init__(self, pool: Pool, name: str, configuration: Configuration) -> None:
        self.name = name
        self.configuration = configuration
        self._pool = pool
        self.process: Any = None  # with `log`, a path, and `close`
        self.users: set[str] = set()  # files and classes of the tests that have used it
        self._failure: Exception | None = None

    def launch(self, log: Path) -> Any:
        """Start the process."""
        raise NotImplementedError

    def start(self, log: Path) -> None:
        """Start the process; one that failed to start once is not tried again."""
        if self._failure is not None:
            raise self._failure
        try:
            self.process = self.launch(log)
        except (Raised, HostDied) as error:
            self._failure = error
            raise

    def running(self) -> Any:
        """Return the process, started if need be."""
        return self._pool.running(self)

    def log(self) -> str:
        """Return what the process has logged so far; starts it if need be."""
        return self.running().log.read_text(errors="replace")

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.close()
            self.process = None


class Engine(Tenant):
    """An engine of one configuration that runs functions of the tests."""

    def launch(self, log: Path) -> Host:
        return Host(self._pool.nursery(self.configuration), self.configuration, log)

    def call(self, function: str | Callable[..., Any], /, *, timeout: float = CALL_SECONDS, **arguments: Any) -> Any:
        """Run ``function(engine, **arguments)`` in the engine's process and return its result, as JSON keeps it.

        Args:
            function: a function at the top of a module (of the test's own, too), or "module.function" for a module of
                the engine's folder.
            timeout: seconds, for engines that hang.
            arguments: JSON values.

        Raises:
            Raised: the function, or the engine's start, raised.
            HostDied: the process ended or hangs; the next call starts it anew.
        """
        host = self.running()
        try:
            return host.call(self.name_of(function), arguments, timeout)
        except HostDied:
            self.stop()
            raise

    def inside(self, function: str | Callable[..., Any], /, **arguments: Any) -> Any:
        """Run a function where the engine schedules and drafts, which may be another process; else as `call`."""
        return self.call(function, **arguments)

    def name_of(self, function: str | Callable[..., Any]) -> str:
        """Return "module:function" as the host imports it."""
        if isinstance(function, str):
            module, _, name = function.rpartition(".")
            return f"{self.configuration.host.rpartition('.')[0]}.{module}:{name}"
        source = Path(inspect.getsourcefile(function) or "").resolve().relative_to(ROOT)
        return f"{'.'.join(source.with_suffix('').parts)}:{function.__qualname__}"


class Adapter(NamedTuple):
    """An engine of the tests: its class, what describes a launch, and arguments that its servers get beside."""

    engine: type[Engine]
    configuration: Callable[..., Configuration]
    served: Mapping[str, Any]


class Pool:
    """The engines of a test session, at most `most` of them alive."""

    def __init__(self, logs: Path, most: int = MOST_ALIVE) -> None:
        self._logs = logs
        self._most = most
        self._tenants: dict[str, Tenant] = {}
        self._alive: list[Tenant] = []  # least recently used first
        self._nurseries: dict[str, Nursery] = {}
        self.started: list[Tenant] = []
        self.seconds = 0.0
        """Spent on starting them."""

    def tenant(self, kind: type[T], name: str, configuration: Configuration) -> T:
        """Return the tenant of a configuration, the same one at every call."""
        found = self._tenants.setdefault(kind.__name__ + configuration.key, kind(self, name, configuration))
        assert isinstance(found, kind)
        return found

    def running(self, tenant: Tenant) -> Any:
        """Return the tenant's process, started if need be.

        Room for it makes one that this class of tests, or this file without classes, has not used, better one with a
        single user than with several, and of those the one that was idle for longest.
        """
        user = os.environ.get("PYTEST_CURRENT_TEST", "").partition("[")[0].rpartition("::")[0]
        self._alive = [other for other in self._alive if other is not tenant and other.process is not None]
        if tenant.process is None:
            while len(self._alive) >= self._most:
                leaving = min(self._alive, key=lambda other: (user in other.users, len(other.users) > 1))
                self._alive.remove(leaving)
                leaving.stop()
            self.started.append(tenant)
            began = time.monotonic()
            tenant.start(self._logs / f"{len(self.started):02d}-{tenant.name}.log")
            self.seconds += time.monotonic() - began
        tenant.users.add(user)
        self._alive.append(tenant)
        return tenant.process

    def nursery(self, configuration: Configuration) -> Nursery:
        """Return the process that forks a configuration's hosts."""
        key = Nursery.key(configuration)
        if key not in self._nurseries:
            self._nurseries[key] = Nursery(configuration, self._logs / f"nursery-{len(self._nurseries)}.log")
        return self._nurseries[key]

    def close(self) -> None:
        """End all processes."""
        for tenant in self._tenants.values():
            tenant.stop()
        for nursery in self._nurseries.values():
            nursery.close()
