"""Engine servers on the shipped model for the demos, each on a free port; the `with` block stops them on exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

MODEL = "tiny"  # its name on every server
START_SECONDS = 300
QUIET = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Launch:
    """Launch configuration of a server.

    Attributes:
        command: that serves the shipped model; host, port and the model's name are added.
        environment: variables to add to this process's own.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


class Server:
    """One server and the processes that it starts; ends with the `with` block."""

    def __init__(self, name: str, launch: Launch) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = Path(tempfile.mkstemp(prefix=f"{name.replace(' ', '-')}-", suffix=".log")[1])
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", MODEL]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*launch.command, *where],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when the server answers."""
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise SystemExit(f"{tail}\n\nthe server {self.name!r} did not come up; its whole log: {self.log}")
            time.sleep(0.3)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=5)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def counts(self) -> dict[str, int]:
        """Return the server's draft counters."""
        with urllib.request.urlopen(f"{self.url}/specplug/status", timeout=60) as answer:
            (engine,) = json.load(answer)["engines"]
        total: dict[str, Any] = engine["workers"][0]["metrics"]["total"]
        return {name: total[name] for name in ("target_steps", "proposed", "accepted", "emitted", "after_stop")}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, error: Any, *_: object) -> None:
        """End the server and its children; keep the log when something went wrong."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # children that it left behind
        self._process.wait()
        if error is None or error is KeyboardInterrupt:
            self.log.unlink()
        else:
            QUIET.print(f"log of the server {self.name!r}: {self.log}")


@contextmanager
def servers(launches: Mapping[str, Launch]) -> Iterator[list[Server]]:
    """Start servers by name, yield them when all answer, and stop them."""
    with ExitStack() as stack:
        started = [stack.enter_context(Server(name, launch)) for name, launch in launches.items()]
        with QUIET.status(f"starting {len(started)} servers; this takes half a minute or so"):
            for server in started:
                server.wait()
        yield started


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
