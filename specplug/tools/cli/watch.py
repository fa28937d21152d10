"""`specplug watch` command: a running server's figures, live in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from specplug.errors import EngineError
from specplug.tools.cli.options import Server, Timeout, with_groups
from specplug.tools.cli.output import console, faults_of, printable_text, remark_text, table
from specplug.tools.client.figures import Reading, figures, read
from specplug.tools.client.http import Refused, ServerClient
from specplug.tools.client.interrupt import discard_output, run_interruptible

MOST_POSITIONS = 16
"""Positions whose acceptance is shown."""

_NOT_OURS = (401, 403, 404)  # what waiting does not change


@dataclass(frozen=True)
class WatchedServer(Server):
    """A server that answers soon, or is away."""

    timeout: Timeout = 10.0


@with_groups
def watch(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures of one interval, and end.")] = False,
    *,
    reached: WatchedServer,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per reading, on a line.")] = False,
) -> None:
    """Show a running vLLM or SGLang server's speculation, live: tokens per step, acceptance, plan and faults.

    The figures are of the last interval; the first ones are since the server's start. While the server is away, or
    after it has restarted, a line says so, and the command goes on. Ctrl-C ends it. The server must have been started
    with specplug. What it generates, runs and queues comes from its own /metrics, which SGLang has with
    --enable-metrics.

    Examples:

    `specplug watch http://127.0.0.1:8000`

    `specplug watch http://127.0.0.1:30000 --interval 10 --json >>figures.jsonl`
    """
    server = reached.client(url)
    try:
        asyncio.run(run_interruptible(_watch(server, interval, once=once, as_json=as_json)))
    except KeyboardInterrupt:
        discard_output()


async def _watch(server: ServerClient, interval: float, *, once: bool, as_json: bool) -> None:
    before: Reading | None = None
    async with server:
        with _shown(as_json) as show:
            if once:
                before = await read(server)
                await asyncio.sleep(interval)
            while True:
                try:
                    now = await read(server)
                except EngineError as error:
                    if once or (isinstance(error, Refused) and error.status in _NOT_OURS):
                        raise
                    show({"url": server.url, "error": str(error)})
                else:
                    show({"url": server.url, "error": None, **figures(now, before)})
                    before = now
                if once:
                    return
                await asyncio.sleep(interval)


@contextlib.contextmanager
def _shown(as_json: bool) -> Iterator[Any]:
    """Yield what shows one document: as a line of JSON, on the same lines of a terminal, or below the last one."""
    out = console()
    if as_json:
        yield lambda found: typer.echo(json.dumps(found))
    elif not out.is_terminal:
        yield lambda found: out.print(screen_view(found))
    else:
        with Live(console=out, auto_refresh=False, vertical_overflow="visible") as live:
            last: list[RenderableType] = []  # stays while the server is away

            def update(found: dict[str, Any]) -> None:
                shown = screen_view(found)
                live.update(Group(*last, shown) if found["error"] else shown, refresh=True)
                if not found["error"]:
                    last[:] = [shown]

            yield update


def screen_view(found: dict[str, Any]) -> RenderableType:
    """Return one document for people."""
    if found["error"] is not None:
        return Text(printable_text(f"{found['error']}; trying again"), style="red")
    seconds = found["seconds"]
    server = found["server"]
    since = "since the server's start" if seconds is None else f"over {seconds:.1f} s"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    head = Text(printable_text(f"{found['url']} ({versions}), {found['time'][11:19]}, {since}"), style="bold")
    remark = [Text("The server has restarted.", style="yellow")] if found["restarted"] else []
    if server is None:
        own = remark_text("The server has no /metrics of its own; SGLang has them with --enable-metrics.")
    else:
        rate = server["tokens_per_second"]
        counted = "" if rate is None else f" {rate:,.1f} tokens per second,"
        own = Text(
            f"The server itself counts{counted} {server['running']:g} requests running, {server['waiting']:g} waiting."
        )
    return Group(head, *remark, own, *(part for engine in found["engines"] for part in _engine(engine, seconds)))


def _engine(engine: dict[str, Any], seconds: float | None) -> Iterator[RenderableType]:
    longest = f"{engine['planned_tokens']} draft tokens planned, at most {engine['ceiling_tokens']}"
    yield Text(f"\nEngine {engine['engine']}: mode {engine['mode']}, {longest}: {engine['reason']}", style="bold")
    if engine["why"]:
        yield remark_text(printable_text(engine["why"]))
    tau, saved, factor = (engine[name] for name in ("tokens_per_step", "steps_saved", "predicted_speedup"))
    measured = [] if tau is None or saved is None else [f"{tau:.2f} tokens per step, {saved:.0%} of the steps saved"]
    expected = [] if factor is None else [f"drafting is expected to be {factor:.2f} times as fast as none"]
    yield Text("; ".join(measured + expected) or "The policy reports no expected speed-up.")
    named = {"all but off" if "off" in engine["sources"] else "all": engine, **engine["sources"]}
    rows = [_cells(source, own, seconds) for source, own in named.items() if own["emitted"] or own["proposed"]]
    if rows:
        unit = "" if seconds is None else "/s"
        columns = ("source", *(f"{what}{unit}" for what in ("tokens", "steps", "drafted", "accepted")))
        yield table("", (*columns, "acceptance", "tokens per step"), rows, whole=1)
    else:
        yield remark_text("No tokens were emitted.")
    shares = [f"{share:.0%}" for share in engine["acceptance_by_position"][:MOST_POSITIONS] if share is not None]
    if shares:
        yield Text(f"Acceptance by position, from the first: {'  '.join(shares)}")
    if engine["faults"]:
        new = faults_of(engine["new_faults"])
        style = "red" if new else "yellow"
        more = f"; new: {', '.join(new)}" if new else ""
        yield Text(printable_text(f"Faults: {', '.join(faults_of(engine['faults']))}{more}"), style=style)
    if engine["corpora"] is not None:
        corpora, tokens, problems = engine["corpora"].values()
        yield Text(f"Corpora: {corpora}, {tokens:,} tokens, {problems} problems", style="red" if problems else "")


def _cells(source: str, own: dict[str, Any], seconds: float | None) -> list[str]:
    counts = [own[name] / (seconds or 1) for name in ("emitted", "target_steps", "proposed", "accepted")]
    form = ",.0f" if seconds is None else ",.1f"
    shares = (_number(own, "acceptance_rate", ".0%"), _number(own, "tokens_per_step", ".2f"))
    return [source, *(format(count, form) for count in counts), *shares]


def _number(figures: dict[str, Any], name: str, form: str) -> str:
    return "-" if figures[name] is None else format(figures[name], form)
