"""An engine's own server, started as a user starts it or forked from a nursery, and called by the `openai` client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.engines.engines import HostDied, Tenant
from tests.engines.host import die_with_parent
from tests.engines.launch import MODEL, ROOT, Configuration
from tests.engines.processes import START_SECONDS, Nursery, end_session, is_there, tail

__all__ = ["MODEL", "ForkedServer", "Server", "ServerProcess"]


class ServerProcess:
    """One running server.  Raises `HostDied`, with the end of the log, when it does not come up.

    Args:
        nursery: forks the server; without one it starts anew.
        start_seconds: the most that it may take until it is healthy.

    Attributes:
        log, port: of the server.
        session: of its processes; its own process id.
    """

    def __init__(
        self,
        configuration: Configuration,
        log: Path,
        nursery: Nursery | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.log = log
        self.port = free_port()
        command = configuration.command(self.port)
        if nursery is None:
            with log.open("ab") as out:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=configuration.variables(),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            self.session = process.pid
            self._is_alive: Callable[[], bool] = lambda: process.poll() is None
        else:
            ours, theirs = socket.socketpair()
            self.session = nursery.fork(configuration.variables(), theirs, log)
            theirs.close()
            ours.sendall((json.dumps({"command": command}) + "\n").encode())
            ours.shutdown(socket.SHUT_WR)  # no call follows, so it ends with the server
            self._channel = ours
            self._is_alive = lambda: is_there(self.session)
        try:
            self._wait_until_healthy(time.monotonic() + start_seconds)
        except BaseException:
            self.close()
            raise

    def _wait_until_healthy(self, deadline: float) -> None:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
                return
            except (urllib.error.URLError, OSError):
                pass
            if not self._is_alive() or time.monotonic() > deadline:
                raise HostDied(f"the server did not come up; {tail(self.log, 60)}")
            time.sleep(0.2)

    def close(self) -> None:
        """End the server and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.session, signal.SIGTERM)
        end_session(self.session, self._is_alive, patience=10.0)


class Answer(NamedTuple):
    """Status code and body of an HTTP answer."""

    code: int
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of a refusal, as either engine words it."""
        return self.json.get("error", self.json)["message"]


class Server(Tenant):
    """A server of one configuration; it starts at its first use."""

    model = MODEL

    def launch(self, log: Path) -> ServerProcess:
        return ServerProcess(self.configuration, log)

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"http://127.0.0.1:{self.running().port}"

    def client(self, **kwargs: Any) -> Any:
        """Return an `openai.OpenAI` that talks to the server."""
        import openai

        return openai.OpenAI(**self._arguments(), **kwargs)

    def async_client(self, **kwargs: Any) -> Any:
        """Return an `openai.AsyncOpenAI` that talks to the server."""
        import openai

        return openai.AsyncOpenAI(**self._arguments(), **kwargs)

    def _arguments(self) -> dict[str, Any]:
        return {"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 300.0}

    def get(self, path: str) -> str:
        """Return the body of a GET."""
        return self.ask(path).body

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str | None = None
    ) -> Answer:
        """GET, or POST `body`: JSON, or bytes as they are, or pieces of unknown length."""
        data = body if body is None or isinstance(body, bytes | Iterator) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())


class ForkedServer(Server):
    """A server in a process that need not import the engine; it runs the same command."""

    def launch(self, log: Path) -> ServerProcess:
        return ServerProcess(self.configuration, log, self._pool.nursery(self.configuration))


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
