"""Command of the soak: starts the control and learns the answers, then starts the server with specplug and soaks it."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.real_models.__main__ import model_folder
from tests.engines import plain
from tests.engines.processes import HostDied
from tests.engines.server import ServerProcess
from tests.soak.judge import Judge
from tests.soak.report import Report
from tests.soak.run import Plant, Soak, answers, with_wrong_token
from tests.soak.targets import PROPOSERS, TARGETS, Target
from tests.soak.traffic import Traffic
from tests.soak.truth import Truth, learn

Engine = StrEnum("Engine", {name: name for name in TARGETS})
Mode = StrEnum("Mode", ["on", "off"])
Planted = StrEnum("Planted", {name: name for name in get_args(Plant)})

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)


start = partial(ServerProcess, start_seconds=1800.0)
"""Starts a server; two that start at once on a busy machine take minutes."""


def known(target: Target, folder: Path) -> Truth:
    """Return the answers of the control."""
    console.print(f"{target.name}: starting the control, without specplug")
    process = start(target.control(), folder / "control.log")
    try:
        url = f"http://127.0.0.1:{process.port}"
        found = learn(lambda prompts: asyncio.run(answers(url, target, list(prompts))), target.size)
    finally:
        process.close()
    kept = len(found.ordinary) / target.size.prompts
    console.print(f"{target.name}: {len(found.ordinary)} prompts with sure answers, {len(found.long)} long ones")
    assert kept > 0.7, "the control and the plain model disagree"
    assert found.long
    return found


def soaked(
    target: Target, requests: int, minutes: float, kills: int, seed: int, plant: Plant | None, folder: Path
) -> Report:
    """Soak servers with specplug one after the other: each but the last is killed, and the next has its store."""
    truth = known(target, folder)
    traffic = Traffic(truth if plant != "token" else with_wrong_token(truth), seed, PROPOSERS, target.shortest)
    judge = Judge()
    lives: list[Report] = []
    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(target.name, total=requests)

        def done(count: int) -> None:
            progress.update(task, completed=count)
            if not console.is_terminal and count % 500 == 0:  # a log gets lines instead of a bar
                console.print(f"{target.name}: {count:,} requests, {judge.wrong} outputs with wrong tokens")

        for number in range(kills + 1):
            console.print(f"{target.name}: starting the server with specplug")
            try:
                process = start(target.soaked(folder / "store"), folder / f"server{number or ''}.log")
            except HostDied as error:
                if not lives:
                    raise
                lives[-1] = replace(lives[-1], crash=f"after a kill {str(error).splitlines()[0]}")
                break
            url = f"http://127.0.0.1:{process.port}"
            soak = Soak(target, url, process.session, process.log, truth, traffic, folder / "store", seed + number)
            soak = replace(soak, plant=plant, judge=judge, kills=number < kills)
            try:
                share = kills + 1
                lives.append(asyncio.run(soak.run(requests // share, minutes / share, done)))
            finally:
                process.close()
            if lives[-1].crash is not None:
                break
    return Report.joined(lives)


@app.command()
def main(
    engine: Annotated[Engine, typer.Option(help="the engine, which this Python environment has to have")],
    requests: Annotated[int, typer.Option(help="most requests")] = 10_000,
    minutes: Annotated[float, typer.Option(help="most minutes of traffic")] = 10.0,
    seed: Annotated[int, typer.Option(help="of the traffic and the faults")] = 0,
    plant: Annotated[Planted | None, typer.Option(help="a failure on purpose, which must be found")] = None,
    mode: Annotated[Mode, typer.Option(help="off: nothing is drafted throughout")] = Mode.on,
    model: Annotated[str, typer.Option(help="tiny, smollm2 (after `make small-model`), or a folder")] = "tiny",
    together: Annotated[int | None, typer.Option(help="requests in flight; by default the engine's")] = None,
    kills: Annotated[int, typer.Option(help="how often the server is killed while requests run, and restarted")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
    logs: Annotated[Path | None, typer.Option(help="folder that keeps the servers' logs")] = None,
) -> None:
    """Soak a real server, by default on the shipped model; exit with 1 if anything was wrong."""
    torch.set_num_threads(1)  # more would wait for each other, as the servers need all cores
    plain.use(Path(model_folder(model)))
    target = replace(TARGETS[engine.value], mode=mode.value)
    target = target if together is None else replace(target, together=together)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            report = soaked(target, requests, minutes, kills, seed, plant and plant.value, folder)
        finally:
            if logs is not None:
                logs.mkdir(parents=True, exist_ok=True)
                for log in folder.glob("*.log"):
                    (logs / log.name).write_bytes(log.read_bytes())
    print(json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(report.lines()), flush=True)
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    app()
