"""`specplug watch` against a small server of our own that counts, restarts, leaves, and answers nonsense."""

from __future__ import annotations

import asyncio
import copy
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from specplug.tools.cli import watch as command
from specplug.tools.client.figures import figures, read
from specplug.tools.client.http import ServerClient
from tests.tools.cli.tools import invoke
from tests.tools.client.servers import LocalServer

SOURCES = ("ngram/own text", "none")


class Counting(LocalServer):
    """A server of two engines that counts a step on request.

    Attributes:
        own: the text of /metrics; None if it has none.
    """

    def __init__(self) -> None:
        super().__init__({"/specplug/status": self._status, "/metrics": self._metrics})
        self.own: str | None = ""
        self.versions = {"specplug": "0"}
        self.restart()

    def restart(self) -> None:
        zero = {"target_steps": 0, "proposed": 0, "accepted": 0, "rejected": 0, "emitted": 0}
        zero |= {"tested_at": [0, 0, 0], "accepted_at": [0, 0, 0]}
        self.engines = [
            {
                "engine": number,
                "max_draft_length": 3,
                "scheduler": {
                    "steps": 0,
                    "control": {"mode": "on", "ceiling": None},
                    "plan": {"draft_length": 3},
                    "policy": {"batch": {"why": "drafts [gain]", "draft_length": 3, "speed_up": 1.25}},
                    "faults": {},
                },
                "workers": [
                    {
                        "details": {"retrieval": {"tenants": {"a": {"x": 7}}, "problems": ["torn"]}},
                        "metrics": {
                            "total": dict(zero),
                            "by_source": {source: copy.deepcopy(zero) for source in SOURCES},
                            "faults": {},
                        },
                    }
                ],
            }
            for number in range(2)
        ]

    def steps(self, count: int, engine: int = 0) -> None:
        """Count steps of one row: each has a draft of three tokens, of which the first two are accepted."""
        found: dict[str, Any] = self.engines[engine]
        found["scheduler"]["steps"] += count
        metrics = found["workers"][0]["metrics"]
        for counts in (metrics["total"], metrics["by_source"][SOURCES[0]]):
            for name, each in (("target_steps", 1), ("proposed", 3), ("accepted", 2), ("rejected", 1), ("emitted", 3)):
                counts[name] += each * count
            counts["tested_at"] = [tested + count for tested in counts["tested_at"]]
            counts["accepted_at"] = [n + each * count for n, each in zip(counts["accepted_at"], (1, 1, 0), strict=True)]
        generated = sum(one["workers"][0]["metrics"]["total"]["emitted"] for one in self.engines)
        if self.own is not None:
            self.own = f'vllm:generation_tokens_total{{engine="0"}} {generated}\nvllm:num_requests_running 2\n'

    def fault(self, kind: str) -> None:
        faults: dict[str, Any] = self.engines[0]["workers"][0]["metrics"]["faults"]
        own = faults.setdefault("ngram", {})
        own[kind] = own.get(kind, 0) + 1

    def _status(self, *_: object) -> Any:
        return {"versions": self.versions, "engines": self.engines}

    def _metrics(self, *_: object) -> Any:
        return (404, "not found") if self.own is None else self.own


@pytest.fixture
def server() -> Iterator[Counting]:
    found = Counting()
    with found.running():
        yield found


def two_readings(server: Counting, between: Any) -> dict[str, Any]:
    async def both() -> dict[str, Any]:
        async with ServerClient(server.url) as client:
            before = await read(client)
            between()
            return figures(await read(client), before)

    return json.loads(json.dumps(asyncio.run(both()), allow_nan=False))


def shown(found: dict[str, Any]) -> str:
    out = Console(record=True, file=io.StringIO())
    out.print(command.screen_view({"url": "http://x", "error": None, **found}))
    return " ".join(out.export_text().split())


def test_figures_are_of_the_interval_and_of_each_engine(server):
    server.steps(100)
    found = two_readings(server, lambda: server.steps(10, engine=1))
    idle, busy = found["engines"]
    assert (idle["emitted"], idle["tokens_per_step"], idle["acceptance_rate"]) == (0, None, None)
    assert (busy["emitted"], busy["target_steps"]) == (30, 10)
    assert busy["tokens_per_second"] == pytest.approx(30 / found["seconds"])
    assert found["server"]["tokens_per_second"] == pytest.approx(30 / found["seconds"])
    assert (found["server"]["running"], found["server"]["waiting"]) == (2, 0)
    assert (busy["tokens_per_step"], busy["steps_saved"]) == (3.0, pytest.approx(2 / 3))
    assert busy["acceptance_rate"] == pytest.approx(2 / 3)
    assert busy["acceptance_by_position"] == [1.0, 1.0, 0.0]
    assert busy["sources"][SOURCES[0]]["emitted"] == 30
    assert busy["sources"]["none"]["emitted"] == 0
    assert (busy["planned_tokens"], busy["ceiling_tokens"], busy["reason"]) == (3, 3, "drafting")
    assert (busy["why"], busy["predicted_speedup"]) == ("drafts [gain]", 1.25)
    assert busy["corpora"] == {"corpora": 1, "tokens": 7, "problems": 1}
    text = shown(found)
    assert "Engine 0: mode on, 3 draft tokens planned, at most 3: drafting" in text
    assert "drafts [gain]" in text
    assert "No tokens were emitted." in text
    assert "3.00 tokens per step, 67% of the steps saved; drafting is expected to be 1.25 times as fast" in text
    assert "100% 100% 0%" in text
    assert "7 tokens, 1 problems" in text


def test_faults_of_the_interval_are_told_from_earlier_ones(server):
    server.fault("late")
    found = two_readings(server, lambda: server.fault("raised"))
    engine = found["engines"][0]
    assert engine["faults"] == {"ngram": {"late": 1, "raised": 1}}
    assert engine["new_faults"] == {"ngram": {"raised": 1}}
    assert "Faults: 1 late (ngram), 1 raised (ngram); new: 1 raised (ngram)" in shown(found)


def test_after_a_restart_figures_are_since_the_start(server):
    server.steps(100)

    def restart() -> None:
        server.restart()
        server.steps(4)

    found = two_readings(server, restart)
    assert (found["restarted"], found["seconds"]) == (True, None)
    assert found["engines"][0]["emitted"] == 12
    assert found["engines"][0]["tokens_per_second"] is None
    assert "The server has restarted." in shown(found)
    assert "since the server's start" in shown(found)


@pytest.mark.parametrize("own", [None, "", "# nothing\n", "{", "vllm:generation_tokens_total NaN\n", "\x00"])
def test_a_server_without_metrics_of_its_own_says_so(server, own):
    server.own = own
    found = two_readings(server, lambda: None)
    assert found["server"] is None
    assert "--enable-metrics" in shown(found)


def test_sglangs_tokens_are_those_that_it_decodes(server):
    server.own = (
        'sglang:realtime_tokens_total{mode="prefill_compute"} 50\nsglang:realtime_tokens_total{mode="decode"} 7\n'
    )
    server.own += "sglang:num_running_reqs 3\nsglang:num_queue_reqs 4\n"

    async def one() -> Any:
        async with ServerClient(server.url) as client:
            return (await read(client)).own

    assert asyncio.run(one()) == (7, 3, 4)


@pytest.mark.parametrize(
    ("status", "remedy"), [(404, "Start the server with specplug"), (401, "--operator-key"), (403, "--operator-key")]
)
def test_a_server_without_specplug_or_the_key_ends_the_command(server, status, remedy):
    server.routes["/specplug/status"] = (status, {"error": "refused"})
    refused = invoke("watch", server.url, code=2)
    assert f"HTTP {status}" in refused.stderr
    assert remedy in refused.stderr


def test_once_a_server_that_is_not_there_is_an_error():
    assert "ConnectError" in invoke("watch", "http://127.0.0.1:1", "--once", code=2).stderr


COMMAND = """
import signal
from specplug.tools.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests are a shell's background job
main()
"""


@contextmanager
def watching(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", COMMAND, "watch", url, "--interval", "0.1", *arguments]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # otherwise an interrupted write counts as done
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def until(process: subprocess.Popen[str], holds: Any) -> dict[str, Any]:
    """Return the first document for which a condition holds."""
    assert process.stdout is not None
    for line in process.stdout:
        found = json.loads(line)
        if holds(found):
            return found
    raise AssertionError(process.stderr and process.stderr.read())


def test_the_command_goes_on_while_a_server_is_away_and_ends_by_ctrl_c(server):
    server.steps(5)
    with watching(server.url, "--json") as process:
        first = until(process, lambda found: found["error"] is None)
        assert (first["seconds"], first["engines"][0]["emitted"]) == (None, 15)
        until(process, lambda found: found["seconds"])
        server.routes["/specplug/status"] = (503, "starting")
        away = until(process, lambda found: found["error"])
        assert server.url in away["error"]
        assert "HTTP 503" in away["error"]
        server.restart()
        server.steps(1)
        server.routes["/specplug/status"] = server._status
        again = until(process, lambda found: found["error"] is None)
        assert again["restarted"]
        assert not until(process, lambda found: found["error"] is None)["restarted"]
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == ""
        assert process.returncode == 0


def test_ctrl_c_ends_a_write_to_a_pipe_that_nobody_reads(server):
    with watching(server.url, "--json") as process:
        until(process, lambda found: found["error"] is None)
        server.versions["specplug"] = "0" * (2 << 20)  # more than a pipe takes
        assert process.stdout is not None
        size = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
        while bytes_in(process.stdout) < size:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == ""  # it ends with the process
        assert process.wait() == 0


def bytes_in(pipe: Any) -> int:
    """Return the number of bytes that wait in a pipe."""
    found = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_without_a_terminal_each_reading_follows_the_one_before(server):
    server.steps(2)
    with watching(server.url) as process:
        assert process.stdout is not None
        heads = [
            line for line, _ in zip(iter(process.stdout.readline, ""), range(30), strict=False) if "specplug 0" in line
        ]
    assert len(heads) >= 2
    assert "since the server's start" in heads[0]
    assert " over 0." in heads[1]
