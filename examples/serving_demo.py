"""Shared parts of the serving demos: the same requests to servers of one engine without and with specplug.

`vllm_demo.py` and `sglang_demo.py` define how their engine is launched; see also `rag_demo.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from demo_servers import MODEL, QUIET, Launch, Server, servers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from specplug.tools.demo.tasks import Task, make_tasks

KINDS = ("edit", "quote", "json")
MODES = ("no speculation", "specplug", "specplug, with the reference")
MAX_TOKENS = 400
FORGETFUL = {name: {"memory_tokens": 0} for name in ("ngram", "retrieval")}
"""No response memory: everything is asked twice, and it would give the answer where the reference should."""
NOTE = (
    "The reference of a request is the answer that it had before, which its prompt does not hold: the best case of a "
    "predicted output. Answers to 'edit' and 'quote' are copies from the prompt, where the n-gram proposer finds them "
    "without a reference; those to 'json' are so in part. Earlier responses are not remembered. The time is that "
    "of a model of 4 M parameters on this machine, HTTP included: on a CPU that shows the mechanism, not a GPU's gain."
)


@dataclass(frozen=True)
class Demo:
    """One engine's demo.

    Attributes:
        about: text of `--help`.
        launches: makes two launches, without and with speculation, from specplug's settings and the draft length.
        with_prediction: returns the `extra_body` of a request with a predicted output.
        remarks: lines to print first.
    """

    about: str
    launches: Callable[[dict[str, Any], int], tuple[Launch, Launch]]
    with_prediction: Callable[[str], dict[str, Any]]
    remarks: Sequence[str] = ()

    def run(self) -> None:
        """Start both servers, compare, print; exit with 1 if any text differs."""
        options = parser(self.about).parse_args()
        remark(self.remarks)
        settings = {"proposer": options.proposer, "policy": options.policy, "options": FORGETFUL}
        tasks = {kind: make_tasks(kind, "held-out", options.tasks, options.seed) for kind in KINDS}
        launches = dict(zip(MODES[:2], self.launches(settings, options.draft_length), strict=True))
        with servers(launches) as (plain, fast):
            last = Arm(MODES[2], fast, lambda _, expected: self.with_prediction(expected))
            rows = report(compare([Arm(MODES[0], plain), Arm(MODES[1], fast), last], tasks))
        summary = {
            "draft_length": options.draft_length,
            "specplug": settings,
            "remarks": list(self.remarks),
            "rows": rows,
        }
        finish(summary, NOTE, as_json=options.json)


def remark(lines: Sequence[str]) -> None:
    """Print introductory remarks on standard error."""
    for line in lines:
        QUIET.print(line, style="bold", soft_wrap=True)


def parser(about: str) -> argparse.ArgumentParser:
    """Return a parser of the options that the demos share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=6, help="tasks of each kind (default: %(default)s)")
    parser.add_argument("--proposer", default="ngram", help="see `specplug list` (default: %(default)s)")
    parser.add_argument("--policy", default="batch", help="see `specplug list` (default: %(default)s)")
    parser.add_argument("--draft-length", type=int, default=15, help="most draft tokens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the tasks (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


@dataclass(frozen=True)
class Arm:
    """One way to send requests.

    Attributes:
        name: its name in the table.
        server: the server that gets the requests.
        extra: makes a request's `extra_body` from the task and the first arm's answer; None sends none.
    """

    name: str
    server: Server
    extra: Callable[[Any, str], dict[str, Any]] | None = None


@dataclass
class Total:
    """Totals of one arm over the tasks of one kind."""

    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    same: int = 0
    right: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def tau(self) -> float | None:
        """Return the tokens per target step, or None if the server does not count them."""
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
    arguments: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0.0}
    began = time.perf_counter()
    if not stream:
        answer = client.completions.create(**arguments, extra_body=extra)
        return answer.choices[0].text, answer.usage.completion_tokens, time.perf_counter() - began
    text, tokens = "", 0
    for chunk in client.completions.create(
        **arguments, extra_body=extra, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.text for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return text, tokens, time.perf_counter() - began


def compare(arms: Sequence[Arm], tasks: Mapping[str, Sequence[Task]]) -> dict[str, dict[str, Total]]:
    """Send every task in every arm, the first of which does not speculate; return the totals by kind and arm."""
    for arm in arms:  # what is set up once is not counted
        ask(arm.server, next(iter(tasks.values()))[-1].prompt, stream=True)
    found = {kind: {arm.name: Total() for arm in arms} for kind in tasks}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=QUIET) as progress:
        bar = progress.add_task("asking", total=sum(map(len, tasks.values())))
        for kind, items in tasks.items():
            progress.update(bar, description=f"{kind}: {len(arms)} requests each")
            for number, task in enumerate(items):
                turn = [arms[0], *(arms[1:] if number % 4 < 2 else arms[:0:-1])]  # no arm always comes behind the same
                _one(turn, task, found[kind], stream=bool(number % 2))
                progress.advance(bar)
    return found


def _one(arms: Sequence[Arm], task: Task, totals: dict[str, Total], *, stream: bool) -> None:
    plain, *others = arms
    expected, tokens, seconds = ask(plain.server, task.prompt, stream=stream)
    _add(totals[plain.name], task, expected, expected, tokens, seconds)
    for arm in others:
        total, before = totals[arm.name], arm.server.counts()
        extra = arm.extra(task, expected) if arm.extra else None
        text, tokens, seconds = ask(arm.server, task.prompt, stream=stream, extra=extra)
        _add(total, task, text, expected, tokens, seconds)
        for name, count in arm.server.counts().items():
            total.counts[name] = total.counts.get(name, 0) + count - before[name]


def _add(total: Total, task: Task, text: str, expected: str, tokens: int, seconds: float) -> None:
    total.tokens += tokens
    total.seconds.append(seconds)
    total.same += text == expected
    total.right += bool(task.is_correct(text))


def report(found: dict[str, dict[str, Total]]) -> list[dict[str, Any]]:
    """Return one row per kind and arm; no ratio where texts differ.

    The ratio of tokens per second is that to the first arm, the median of the tasks: other work on the machine slows
    single requests.
    """
    rows = []
    for kind, totals in found.items():
        base = next(iter(totals.values()))
        for mode, total in totals.items():
            ratio = median(slow / fast for slow, fast in zip(base.seconds, total.seconds, strict=True))
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


def finish(summary: dict[str, Any], note: str, *, as_json: bool) -> None:
    """Print the summary, its rows as a table or all of it as JSON; exit with 1 if any text differs."""
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        show(summary["rows"], note)
    if any(row["identical"] < row["tasks"] for row in summary["rows"]):
        raise SystemExit("texts differ from those without speculation")


def show(rows: list[dict[str, Any]], note: str) -> None:
    """Print the table and its explanation."""
    header = ("task", "server", "tokens", "tokens per step", "accepted", "tokens per second", "identical", "correct")
    table = Table(*header, title="One request at a time, by the openai client; half of them streamed")
    for row in rows:
        rate, ratio = row["acceptance_rate"], row["tokens_per_second_ratio"]
        table.add_row(
            row["task"] if row["mode"] == rows[0]["mode"] else "",
            row["mode"],
            str(row["tokens"]),
            "" if row["tokens_per_step"] is None else f"{row['tokens_per_step']:.2f}",
            "" if rate is None else f"{rate:.0%}",
            "outputs differ" if ratio is None else f"{ratio:.2f}x",
            f"{row['identical']} of {row['tasks']}",
            f"{row['correct']} of {row['tasks']}",
            end_section=row["mode"] == rows[-1]["mode"],
        )
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = 130
    out.print(table)
    out.print(note, style="dim")
