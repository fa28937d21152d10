"""What the demos of serving engines share: two servers of one engine, without specplug and with it, asked the same.

See `vllm_demo.py` and `sglang_demo.py`, which say how their engine is launched.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from specplug.demo.tasks import Task, make_tasks

KINDS = ("edit", "quote", "json")
MODES = ("no speculation", "specplug", "specplug, with the reference")
MODEL = "tiny"  # its name on both servers
MAX_TOKENS = 400
FORGETFUL = {"ngram": {"memory_tokens": 0}, "ngram-tree": {"memory_tokens": 0}}
"""No response memory: everything is asked twice, and it would give the answer where the reference should."""
START_SECONDS = 300
NOTE = (
    "The reference of a request is the answer that it had before, which its prompt does not hold: the best case of a "
    "predicted output. Answers to 'edit' and 'quote' are copies from the prompt, where the n-gram proposer finds them "
    "without a reference; those to 'json' are so in part. Earlier responses are not remembered. The time is that "
    "of a model of 4 M parameters on this machine, HTTP included: on a CPU that shows the mechanism, not a GPU's gain."
)
QUIET = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Attributes:
        command: that serves the shipped model; host, port and the model's name are added.
        environment: variables beside this process's own.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Demo:
    """One engine's demo.

    Attributes:
        about: what `--help` says.
        launches: makes two launches, without speculation and with it, from specplug's settings and the widest draft.
        with_prediction: returns what a request carries in `extra_body` to bring a predicted output.
        remarks: lines to print first.
    """

    about: str
    launches: Callable[[dict[str, Any], int], tuple[Launch, Launch]]
    with_prediction: Callable[[str], dict[str, Any]]
    remarks: Sequence[str] = ()

    def run(self) -> None:
        """Start both servers, compare, print; exit with 1 if any text differs."""
        options = _options(self.about)
        for remark in self.remarks:
            QUIET.print(remark, style="bold", soft_wrap=True)
        settings = {"proposer": options.proposer, "policy": options.policy, "options": FORGETFUL}
        tasks = {kind: make_tasks(kind, "held-out", options.tasks, options.seed) for kind in KINDS}
        launches = self.launches(settings, options.width)
        with ExitStack() as stack:
            plain, fast = (stack.enter_context(Server(*one)) for one in zip(MODES[:2], launches, strict=True))
            with QUIET.status("starting two servers; this takes half a minute or so"):
                plain.wait()
                fast.wait()
            rows = report(compare(plain, fast, tasks, self.with_prediction))
        if options.json:
            said = {"width": options.width, "specplug": settings, "remarks": list(self.remarks), "rows": rows}
            print(json.dumps(said, indent=2))
        else:
            show(rows)
        if any(row["identical"] < row["tasks"] for row in rows):
            raise SystemExit("texts differ from those without speculation")


def _options(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=6, help="tasks of each kind (default: %(default)s)")
    parser.add_argument("--proposer", default="ngram", help="see `specplug list` (default: %(default)s)")
    parser.add_argument("--policy", default="batch", help="see `specplug list` (default: %(default)s)")
    parser.add_argument("--width", type=int, default=8, help="most draft tokens per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the tasks (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args()


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
        """Return what the server has drafted so far."""
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


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Total:
    """What one mode did with the tasks of one kind."""

    tokens: int = 0
    seconds: float = 0.0
    same: int = 0
    right: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def tau(self) -> float | None:
        """Tokens per step of the model; None where the server does not count."""
        steps = self.counts.get("target_steps")
        return (self.counts["emitted"] - self.counts["after_stop"]) / steps if steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted."""
        drafted = self.counts.get("proposed")
        return self.counts["accepted"] / drafted if drafted else None


def ask(server: Server, prompt: str, *, stream: bool, extra: dict[str, Any] | None = None) -> tuple[str, int, float]:
    """Send one request; return the text, its tokens, and the seconds that it took."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    said: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0.0}
    began = time.perf_counter()
    if not stream:
        answer = client.completions.create(**said, extra_body=extra)
        return answer.choices[0].text, answer.usage.completion_tokens, time.perf_counter() - began
    text, tokens = "", 0
    for chunk in client.completions.create(
        **said, extra_body=extra, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.text for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return text, tokens, time.perf_counter() - began


def compare(
    plain: Server, fast: Server, tasks: dict[str, list[Task]], with_prediction: Callable[[str], dict[str, Any]]
) -> dict[str, dict[str, Total]]:
    """Send every task in every mode; return the totals by kind and mode."""
    for server in (plain, fast):  # what is set up once is not counted
        ask(server, tasks["quote"][-1].prompt, stream=True)
    found = {kind: {mode: Total() for mode in MODES} for kind in tasks}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=QUIET) as progress:
        bar = progress.add_task("asking", total=sum(map(len, tasks.values())))
        for kind, items in tasks.items():
            progress.update(bar, description=f"{kind}: {len(MODES)} requests each")
            for number, task in enumerate(items):
                _one(plain, fast, task, found[kind], with_prediction, stream=bool(number % 2))
                progress.advance(bar)
    return found


def _one(
    plain: Server,
    fast: Server,
    task: Task,
    totals: dict[str, Total],
    with_prediction: Callable[[str], dict[str, Any]],
    *,
    stream: bool,
) -> None:
    expected = None
    for mode, server in zip(MODES, (plain, fast, fast), strict=True):
        total, before = totals[mode], fast.counts()
        extra = with_prediction(expected) if mode == MODES[2] and expected is not None else None
        text, tokens, seconds = ask(server, task.prompt, stream=stream, extra=extra)
        expected = text if expected is None else expected
        total.tokens, total.seconds = total.tokens + tokens, total.seconds + seconds
        total.same += text == expected
        total.right += bool(task.is_correct(text))
        if server is fast:
            for name, count in fast.counts().items():
                total.counts[name] = total.counts.get(name, 0) + count - before[name]


def report(found: dict[str, dict[str, Total]]) -> list[dict[str, Any]]:
    """Return one row per kind and mode; no ratio where texts differ."""
    rows = []
    for kind, totals in found.items():
        base = totals[MODES[0]]
        for mode, total in totals.items():
            ratio = (total.tokens / total.seconds) / (base.tokens / base.seconds)
            rows.append(
                {
                    "task": kind,
                    "mode": mode,
                    "tokens": total.tokens,
                    "tokens_per_step": 1.0 if total is base else total.tau,
                    "acceptance_rate": total.acceptance_rate,
                    "tokens_per_second_ratio": ratio if total.same == base.same else None,
                    "identical": total.same,
                    "correct": total.right,
                    "tasks": base.same,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table and what it means."""
    header = ("task", "server", "tokens", "tokens per step", "accepted", "tokens per second", "identical", "correct")
    table = Table(*header, title="One request at a time, by the openai client; half of them streamed")
    for row in rows:
        rate, ratio = row["acceptance_rate"], row["tokens_per_second_ratio"]
        table.add_row(
            row["task"] if row["mode"] == MODES[0] else "",
            row["mode"],
            str(row["tokens"]),
            "" if row["tokens_per_step"] is None else f"{row['tokens_per_step']:.2f}",
            "" if rate is None else f"{rate:.0%}",
            "outputs differ" if ratio is None else f"{ratio:.2f}x",
            f"{row['identical']} of {row['tasks']}",
            f"{row['correct']} of {row['tasks']}",
            end_section=row["mode"] == MODES[-1],
        )
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = 130
    out.print(table)
    out.print(NOTE, style="dim")
