"""Engines that start when first used, live in processes of their own, and make room for each other."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.engines.vllm.launch import PYTHON, ROOT, Configuration

START_SECONDS = 300.0
CALL_SECONDS = 600.0
MOST_ALIVE = 3

T = TypeVar("T", bound="Tenant")


class Raised(Exception):
    """What a call raised inside the host: `type` and `text` of the exception, its `trace` in the message."""

    def __init__(self, type: str, text: str, trace: str) -> None:
        super().__init__(f"{type}: {text}\n{trace}")
        self.type, self.text = type, text


class HostDied(Exception):
    """The engine's process ended, or did not answer in time."""


class Host:
    """One running process with an engine in it; see `host`."""

    def __init__(self, configuration: Configuration, log: Path) -> None:
        self.log = log
        ours, theirs = socket.socketpair()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "tests.engines.vllm.host", str(theirs.fileno())],
                cwd=ROOT,
                env=configuration.variables(),
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that its children can be ended with it
            )
        theirs.close()
        self._socket, self._pending = ours, b""
        try:
            self._ask(dict(configuration.arguments), START_SECONDS)
        except BaseException:
            self.close()
            raise

    def call(self, function: str, arguments: dict[str, Any], timeout: float) -> Any:
        return self._ask({"function": function, "arguments": arguments}, timeout)

    def _ask(self, message: Any, timeout: float) -> Any:
        self._socket.sendall((json.dumps(message) + "\n").encode())
        answer = json.loads(self._read_line(time.monotonic() + timeout))
        if "raised" in answer:
            raise Raised(**answer["raised"])
        return answer["result"]

    def _read_line(self, deadline: float) -> bytes:
        self._socket.settimeout(1.0)
        while b"\n" not in self._pending:
            try:
                received = self._socket.recv(1 << 20)
            except TimeoutError:
                received = None
            if received:
                self._pending += received
            elif received == b"" or self._process.poll() is not None:
                raise HostDied(f"the engine's process has ended with {self._process.wait()}; {self.tail()}")
            elif time.monotonic() > deadline:
                raise HostDied(f"the engine's process did not answer in time; {self.tail()}")
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log."""
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"the end of {self.log}:", *text[-lines:]])

    def close(self) -> None:
        """End the process and its children."""
        self._socket.close()
        end_group(self._process)


def end_group(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End a process that leads a session, and whatever it has left behind."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class Tenant:
    """What takes a place in the pool: a process that starts when first used, and again after it was ended."""

    def __init__(self, pool: Pool, name: str, configuration: Configuration) -> None:
        self.name, self.configuration = name, configuration
        self._pool = pool
        self.process: Any = None  # with `log`, a path, and `close`
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
    """An `LLM` of one configuration that runs functions of the tests."""

    def launch(self, log: Path) -> Host:
        return Host(self.configuration, log)

    def call(self, function: str | Callable[..., Any], /, *, timeout: float = CALL_SECONDS, **arguments: Any) -> Any:
        """Run ``function(llm, **arguments)`` in the engine's process and return its result, as JSON keeps it.

        Args:
            function: a function at the top of a module (of the test's own, too), or "module.function" for a module of
                this folder.
            timeout: seconds, for engines that hang.
            arguments: JSON values.

        Raises:
            Raised: the function, or the engine's start, raised.
            HostDied: the process ended or hangs; the next call starts it anew.
        """
        host = self.running()
        try:
            return host.call(name_of(function), arguments, timeout)
        except HostDied:
            self.stop()
            raise


class Pool:
    """The engines of a test session, at most `most` of them alive."""

    def __init__(self, logs: Path, most: int = MOST_ALIVE) -> None:
        self._logs, self._most = logs, most
        self._tenants: dict[str, Tenant] = {}
        self._alive: list[Tenant] = []  # least recently used first
        self.started: list[str] = []

    def tenant(self, kind: type[T], name: str, configuration: Configuration) -> T:
        """Return the tenant of a configuration, the same one whenever it is asked for."""
        found = self._tenants.setdefault(kind.__name__ + configuration.key, kind(self, name, configuration))
        assert isinstance(found, kind)
        return found

    def running(self, tenant: Tenant) -> Any:
        """Return the tenant's process, started if need be; the one that was idle for longest makes room for it."""
        self._alive = [other for other in self._alive if other is not tenant and other.process is not None]
        if tenant.process is None:
            while len(self._alive) >= self._most:
                self._alive.pop(0).stop()
            self.started.append(tenant.name)
            tenant.start(self._logs / f"{len(self.started):02d}-{tenant.name}.log")
        self._alive.append(tenant)
        return tenant.process

    def close(self) -> None:
        """End all processes."""
        for tenant in self._tenants.values():
            tenant.stop()


def name_of(function: str | Callable[..., Any]) -> str:
    """Return "module:function" as the host imports it."""
    if isinstance(function, str):
        module, _, name = function.rpartition(".")
        return f"tests.engines.vllm.{module}:{name}"
    source = Path(inspect.getsourcefile(function) or "").resolve().relative_to(ROOT)
    return f"{'.'.join(source.with_suffix('').parts)}:{function.__qualname__}"
