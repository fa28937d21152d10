"""Processes of the tests' engines, seen from the tests' side; `host` is the other side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.host import PACKET, die_with_parent
from tests.engines.launch import PYTHON, ROOT, Configuration

START_SECONDS = 300.0


class Raised(Exception):
    """An exception raised by a call inside the host: `type` and `text` of the exception, its `trace` in the message."""

    def __init__(self, type: str, text: str, trace: str) -> None:
        super().__init__(f"{type}: {text}\n{trace}")
        self.type = type
        self.text = text


class HostDied(Exception):
    """The engine's process ended, or did not answer in time."""


class Nursery:
    """A process that has imported an engine under some environment and forks hosts."""

    def __init__(self, configuration: Configuration, log: Path) -> None:
        self._module = configuration.host
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [PYTHON, "-m", self._module, str(theirs.fileno())],
                cwd=ROOT,
                env=configuration.early(),
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent,
            )
        theirs.close()
        self.log = log

    @staticmethod
    def key(configuration: Configuration) -> str:
        """Return the same for configurations that one nursery can serve."""
        return json.dumps([configuration.host, configuration.early()], sort_keys=True)

    def fork(self, variables: dict[str, str], channel: socket.socket, log: Path) -> int:
        """Start a host and return its process id."""
        packet = json.dumps({"environment": variables}).encode()
        assert len(packet) < PACKET
        self._control.settimeout(START_SECONDS)
        answer = b""
        with log.open("ab") as out, contextlib.suppress(ConnectionError):
            socket.send_fds(self._control, [packet], [channel.fileno(), out.fileno()])
            answer = self._control.recv(64)
        if not answer:
            raise HostDied(f"{self._module} cannot import its engine; {tail(self.log)}")
        return int(answer)

    def close(self) -> None:
        """End the process; its hosts end with it."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class Host:
    """One running process with an engine in it."""

    def __init__(self, nursery: Nursery, configuration: Configuration, log: Path) -> None:
        self.log = log
        self._has_children = configuration.has_children
        self._socket, theirs = socket.socketpair()
        self._pending = b""
        self._pid = nursery.fork(configuration.variables(), theirs, log)
        theirs.close()
        try:
            self._ask(dict(configuration.arguments), START_SECONDS)
        except BaseException:
            self.close()
            raise

    def call(self, function: str, arguments: dict[str, Any], timeout: float) -> Any:
        """Run a function in the host; see `Engine.call`."""
        return self._ask({"function": function, "arguments": arguments}, timeout)

    def _ask(self, message: Any, timeout: float) -> Any:
        try:
            self._socket.sendall((json.dumps(message) + "\n").encode())
        except BrokenPipeError as error:
            raise HostDied(f"the engine's process has ended; {tail(self.log)}") from error
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
            elif received == b"" or not self._is_alive():
                raise HostDied(f"the engine's process has ended; {tail(self.log)}")
            elif time.monotonic() > deadline:
                raise HostDied(f"the engine's process did not answer in time; {tail(self.log)}")
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _is_alive(self) -> bool:
        return is_there(self._pid)

    def close(self) -> None:
        """End the process and its children."""
        self._socket.close()
        end_session(self._pid, self._is_alive, patience=10.0 if self._has_children else 0.0)


def is_there(pid: int) -> bool:
    """Return whether a process that is not this one's child has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def tail(log: Path, lines: int = 40) -> str:
    """Return the end of a log."""
    return "\n".join([f"the end of {log}:", *log.read_text(errors="replace").splitlines()[-lines:]])


def end_session(leader: int, is_alive: Callable[[], bool], patience: float) -> None:
    """End a process that leads a session, and whatever it has left behind.

    It may take `patience` seconds to end by itself, and as long again after a signal.
    """
    if not _ended(is_alive, patience):
        _signal(leader, signal.SIGTERM)
        _ended(is_alive, patience)
    _signal(leader, signal.SIGKILL)
    _ended(is_alive, 10.0)


def _ended(is_alive: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _signal(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
