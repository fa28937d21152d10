"""The command line's SGLang engine: a model by name or path, text in, text out.

SGLang keeps its server configuration in process-wide state, and the adapter reads specplug's settings from the
environment.  So each engine runs in a separate process, `specplug_sglang.generate_process`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from specplug.errors import EngineError, RequestError
from specplug.metrics import MetricsSnapshot
from specplug.operator.launches import differing
from specplug.plugins.engines import TextRequest, TextUpdate
from specplug.settings.model import Settings
from specplug.settings.sources import CONFIG_VARIABLE

PATIENCE = 30.0
"""Seconds to wait for an engine's processes to end."""


class SglangEngine:
    """A `specplug.plugins.engines.TextEngine` over `sglang.Engine`.

    Args:
        model: a Hugging Face model id or a folder.
        settings: the server's settings.
        device: SGLang's name of a device; None keeps SGLang's default.
        dtype: a torch dtype's name; float32 on a CPU and SGLang's own choice elsewhere by default.
        max_num_seqs: most concurrent requests.
        threads: CPU threads; None keeps SGLang's default.
        baseline: run SGLang without speculation, as if specplug were not installed.

    Raises:
        EngineError: SGLang is not installed, does not run on this machine, or cannot load the model.
    """

    def __init__(
        self,
        model: str,
        settings: Settings,
        *,
        device: str | None = None,
        dtype: str | None = None,
        max_num_seqs: int = 8,
        threads: int | None = None,
        baseline: bool = False,
    ) -> None:
        if importlib.util.find_spec("sglang") is None:
            raise _error("SGLang is not installed", remedy="Install it in specplug's environment")
        arguments = {
            "model": model,
            "device": device,
            "dtype": dtype,
            "draft_length": settings.num_speculative_tokens,
            "seed": settings.seed,
            "max_num_seqs": max_num_seqs,
            "baseline": baseline,
        }
        self._model = model
        self._process = _Process(_environment(settings, threads), arguments)
        self.metrics = _Counts(self._process)

    def stream(self, requests: Sequence[TextRequest]) -> Iterator[TextUpdate]:
        """Serve the requests in one batch and yield updates; closing the iterator aborts them all."""
        self._process.send("generate", [asdict(request) for request in requests])
        what, update = self._process.receive()
        while what == "update":
            try:
                yield TextUpdate(**update)
            except GeneratorExit:
                self._process.send("stop")
                while what == "update":
                    what, _ = self._process.receive()
                raise
            what, update = self._process.receive()

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        self._process.send("tokenize", text)
        return list(self._process.receive()[1])

    def describe(self) -> str:
        """Return model, dtype, device and engine in one line."""
        server = self._process.ready
        return f"{Path(self._model).name}, {server['dtype']}, on {server['device']}, SGLang {server['version']}"

    def close(self) -> None:
        """Shut down the engine's processes."""
        self._process.close()


class _Counts:
    """Counters since the engine was built, fetched from its process at each `snapshot`."""

    def __init__(self, process: _Process) -> None:
        self._process = process

    def snapshot(self) -> MetricsSnapshot:
        """Return the counts of the worker that drafts, and the scheduler's faults."""
        from specplug.operator.exporter import snapshot_of

        self._process.send("status")
        _, (status,) = self._process.receive()
        (counts,) = (worker["metrics"] for worker in status["workers"] if worker["drafts"])
        return snapshot_of(counts, status["scheduler"]["faults"])


class _Process:
    """The process that holds the engine.

    Attributes:
        ready: dtype, device and version that the process reported when its engine had started.
    """

    def __init__(self, environment: dict[str, str], arguments: dict[str, Any]) -> None:
        self._connection, theirs = Pipe()
        handle, log = tempfile.mkstemp(prefix="specplug-sglang-", suffix=".log")
        self._log, self._is_log_wanted = Path(log), False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "specplug_sglang.generate_process", str(theirs.fileno())],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the engine's
        )
        theirs.close()
        os.close(handle)
        try:
            self.send("start", arguments)
            _, self.ready = self.receive()
        except BaseException:
            self.close()
            raise

    def send(self, what: str, value: Any = None) -> None:
        """Send a message."""
        try:
            self._connection.send((what, value))
        except OSError:
            raise self._ended() from None

    def receive(self) -> tuple[str, Any]:
        """Return the next message.

        Raises:
            EngineError: SGLang has failed, or its process has ended.
            RequestError: a request is invalid.
        """
        try:
            what, value = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if what == "refused":
            raise RequestError(value)
        if what == "raised":
            raise _error(value["what"], found=value["found"], remedy=f"SGLang's own log: {self._keep_log()}")
        return what, value

    def close(self) -> None:
        """Close the connection, which ends the process; kill it after `PATIENCE` seconds."""
        self._connection.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._is_log_wanted:
            self._log.unlink(missing_ok=True)

    def _keep_log(self) -> Path:
        """Return the log's path and keep the file, because the error message names it."""
        self._is_log_wanted = True
        return self._log

    def _ended(self) -> EngineError:
        found = f"exit code {self._process.wait(PATIENCE)}"
        return _error("SGLang has ended", found=found, remedy=f"Its log says why: {self._keep_log()}")


def _environment(settings: Settings, threads: int | None) -> dict[str, str]:
    """Return the environment of an engine's process.

    The maximum draft length is left out, since it is an argument of SGLang; a maximum of 0 becomes mode "off".
    """
    server = {key: value for key, value in differing(settings).items() if key != "num_speculative_tokens"}
    if not settings.num_speculative_tokens:
        server["mode"] = "off"
    threads_requested = {} if threads is None or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    return {**os.environ, **threads_requested, CONFIG_VARIABLE: json.dumps(server)}


def _error(what: str, *, found: str | None = None, remedy: str | None = None) -> EngineError:
    error = EngineError.build(what, who="specplug_sglang", found=found, remedy=remedy)
    assert isinstance(error, EngineError)
    return error
