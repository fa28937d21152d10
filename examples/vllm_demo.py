"""A real vLLM server with specplug, beside the same server without: `make demo-vllm`.

    .venv-vllm/bin/python examples/vllm_demo.py [--tasks 6] [--proposer ngram] [--width 8] [--json]

What happens:

1. Two servers are started by `vllm serve` on the model that specplug ships, each on a free port:

       vllm serve MODEL                                                      (no speculation)
       vllm serve MODEL --speculative-config '{"method": "custom_class", "model": "specplug_vllm.Proposer", ...}'

2. The `openai` client asks both the same things, one request at a time, every other one as a stream: to apply an edit
   to code, to quote from documents, to fill in JSON.
3. Each request is sent to the specplug server once more with a reference text, in `extra_body={"vllm_xargs":
   {"specplug_prediction": TEXT}}`: the answer that it had the first time, as a client gives that asks again.  The
   prompt does not hold that text.  This is the best case of a predicted output; a wrong one costs drafts, never text.
4. The texts are compared, and the tokens per step and the acceptance rate are read from `/specplug/status`.

Exit code 1 if any text differs.  Takes about two minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from specplug.demo import model_path
from specplug.demo.tasks import Task, make_tasks

KINDS = ("edit", "quote", "json")
MODES = ("no speculation", "specplug", "specplug, with the reference")
MAX_TOKENS = 400
START_SECONDS = 300
NOTE = (
    "The reference of a request is the answer that it had before, which its prompt does not hold: the best case of a "
    "predicted output. Answers to 'edit' and 'quote' are copies from the prompt, where the n-gram proposer finds them "
    "without a reference; those to 'json' are so in part. The wall clock is that of a model of 4 M parameters on this "
    "machine's CPU, HTTP included: it shows the mechanism, not what a GPU gains."
)
QUIET = Console(stderr=True, highlight=False)


class Server:
    """One `vllm serve` and the processes that it starts; ends with the `with` block."""

    def __init__(self, name: str, flags: Sequence[str]) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = Path(tempfile.mkstemp(prefix=f"{name.replace(' ', '-')}-", suffix=".log")[1])
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "tiny"]
        engine = "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 4 --no-enable-prefix-caching"
        vllm = Path(sys.executable).with_name("vllm")
        command = [str(vllm), "serve", str(model_path("tiny")), *arguments, *engine.split(), *flags]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
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


def environment() -> dict[str, str]:
    """Return the servers' environment: small, offline, one CPU thread, and specplug's routes switched on."""
    own = {
        "VLLM_PLUGINS": "specplug,specplug_http",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return {**os.environ, **own}


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


def ask(server: Server, prompt: str, *, stream: bool, reference: str | None = None) -> tuple[str, int, float]:
    """Send one request; return the text, its tokens, and the seconds that it took."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    extra = None if reference is None else {"vllm_xargs": {"specplug_prediction": reference}}
    said: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0.0}
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


def compare(plain: Server, fast: Server, tasks: dict[str, list[Task]]) -> dict[str, dict[str, Total]]:
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
                _one(plain, fast, task, found[kind], stream=bool(number % 2))
                progress.advance(bar)
    return found


def _one(plain: Server, fast: Server, task: Task, totals: dict[str, Total], *, stream: bool) -> None:
    expected = None
    for mode, server in zip(MODES, (plain, fast, fast), strict=True):
        total, before = totals[mode], fast.counts()
        reference = expected if mode == MODES[2] else None
        text, tokens, seconds = ask(server, task.prompt, stream=stream, reference=reference)
        expected = text if expected is None else expected
        total.tokens, total.seconds = total.tokens + tokens, total.seconds + seconds
        total.same += text == expected
        total.right += bool(task.is_correct(text))
        if server is fast:
            for name, count in fast.counts().items():
                total.counts[name] = total.counts.get(name, 0) + count - before[name]


def report(found: dict[str, dict[str, Total]]) -> list[dict[str, Any]]:
    """Return one row per kind and mode."""
    rows = []
    for kind, totals in found.items():
        base = totals[MODES[0]]
        for mode, total in totals.items():
            rows.append(
                {
                    "task": kind,
                    "mode": mode,
                    "tokens": total.tokens,
                    "tokens_per_step": 1.0 if total is base else total.tau,
                    "acceptance_rate": total.acceptance_rate,
                    "wall_clock_ratio": base.seconds / total.seconds if total.same == base.same else None,
                    "identical": total.same,
                    "correct": total.right,
                    "tasks": base.same,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table and what it means."""
    header = ("task", "server", "tokens", "tokens per step", "accepted", "wall-clock ratio", "identical", "correct")
    table = Table(*header, title="One request at a time, by the openai client; half of them streamed")
    for row in rows:
        rate, ratio = row["acceptance_rate"], row["wall_clock_ratio"]
        table.add_row(
            row["task"] if row["mode"] == MODES[0] else "",
            row["mode"],
            str(row["tokens"]),
            f"{row['tokens_per_step']:.2f}",
            "" if rate is None else f"{rate:.0%}",
            "outputs differ" if ratio is None else f"{ratio:.2f}x",
            f"{row['identical']} of {row['tasks']}",
            f"{row['correct']} of {row['tasks']}",
            end_section=row["mode"] == MODES[-1],
        )
    out = Console(highlight=False, width=None if sys.stdout.isatty() else 130)
    out.print(table)
    out.print(NOTE, style="dim")


def main() -> None:
    """Start both servers, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=6, help="tasks of each kind (default: %(default)s)")
    parser.add_argument("--proposer", default="ngram", help="see `specplug list` (default: %(default)s)")
    parser.add_argument("--policy", default="fixed", help="see `specplug list` (default: %(default)s)")
    parser.add_argument("--width", type=int, default=8, help="num_speculative_tokens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the tasks (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    asked = {"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": options.width}
    settings = {"specplug": {"proposer": options.proposer, "policy": options.policy}}
    flags = ["--speculative-config", json.dumps(asked), "--additional-config", json.dumps(settings)]
    tasks = {kind: make_tasks(kind, "held-out", options.tasks, options.seed) for kind in KINDS}
    with ExitStack() as stack:
        plain, fast = (stack.enter_context(Server(*one)) for one in ((MODES[0], ()), (MODES[1], flags)))
        with QUIET.status("starting two servers; this takes half a minute or so"):
            plain.wait()
            fast.wait()
        rows = report(compare(plain, fast, tasks))
    if options.json:
        print(json.dumps({"width": options.width, **settings, "rows": rows}, indent=2))
    else:
        show(rows)
    if any(row["identical"] < row["tasks"] for row in rows):
        raise SystemExit("texts differ from those without speculation")


if __name__ == "__main__":
    main()
