"""`specplug simulate` command: judges policies on simulated servers under recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from specplug.cli.launch import PluginOptions, nested_options
from specplug.cli.output import AsJson, console, print_json, print_table, progress
from specplug.cli.simulate_inputs import cases, trajectories
from specplug.errors import SettingsError

TRAFFIC = ("steady:8", "steady:64", "steady:256", "bursty:0.8")
MODES = ("padded", "ragged", "cut")


def simulate(
    traces: Annotated[
        list[Path] | None, typer.Argument(help="Files or folders of .jsonl traces; by default the shipped ones.")
    ] = None,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help="A policy to judge; repeat. By default the server's setting.")
    ] = None,
    options: PluginOptions = None,
    surfaces: Annotated[
        list[str] | None, typer.Option("--surface", help="A cost surface; repeat. By default all that are open.")
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="Use the surfaces that are held out, to assess a policy that is finished."),
    ] = False,
    modes: Annotated[
        list[str] | None, typer.Option("--mode", help="padded, ragged or cut (on the device); repeat. By default all.")
    ] = None,
    traffic: Annotated[
        list[str] | None,
        typer.Option("--traffic", help="steady:N, ramp, poisson:LOAD or bursty:LOAD; repeat."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Least number of requests.")] = (400),
    max_running: Annotated[
        int, typer.Option("--max-running", min=1, max=512, help="Most requests at a time, for poisson and bursty.")
    ] = 256,
    gamma: Annotated[int, typer.Option("--gamma", min=1, max=31, help="Most draft tokens per request and step.")] = 15,
    lag: Annotated[
        int | None, typer.Option("--lag", min=0, max=2, help="Steps by which plans are delayed; by default the mode's.")
    ] = None,
    cached_share: Annotated[
        float, typer.Option("--cached-share", min=0.0, max=1.0, help="Share of each prompt in the prefix cache.")
    ] = 0.5,
    cached_context: Annotated[
        int, typer.Option("--cached-context", min=0, help="Tokens of cached context before each prompt.")
    ] = 0,
    noise: Annotated[float, typer.Option("--noise", min=0.0, help="Standard deviation of step times, a share.")] = 0.02,
    drift: Annotated[float, typer.Option("--drift", min=0.0, max=0.5, help="Slow change of step times, a share.")] = (
        0.05
    ),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of order, arrivals, noise and peers.")] = 0,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Leave the adaptive peers out.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="The tokenizer, as for `specplug replay`.")
    ] = None,
    proposer: Annotated[
        str | None, typer.Option("--proposer", help="The proposer that drafts; by default the server's setting.")
    ] = None,
    workloads: Annotated[
        list[str] | None, typer.Option("--workloads", help="Only these, separated by commas; repeat.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N requests of a workload.")
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option("--trajectories", help="File of recorded drafts (.npz): read if it exists, otherwise written."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge policies on simulated servers: batch sizes, bursts and accelerators that this machine lacks.

    The proposer drafts at every position of recorded outputs, so every draft's fate is known; a cost surface gives the
    time of each step.  Policies run through the same code as in the engines.  They are compared with no speculation,
    constant draft lengths, adaptive policies of other systems, and a clairvoyant.  All figures are simulated.
    docs/simulate.md says what is modelled.

    Examples:

    `specplug simulate`

    `specplug simulate traces/ --policy batch --surface h200-8b --mode cut --traffic steady:64 --traffic bursty:0.8`

    `specplug simulate --trajectories drafts.npz --policy fixed --option fixed.gamma=3 --json`
    """
    from specplug.plugins.registry import default_registry
    from specplug.plugins.specs import JOINS_POLICIES
    from specplug.settings.sources import load_settings
    from specplug.simulate.deciding import Policy
    from specplug.simulate.judge import judge, runs_of
    from specplug.simulate.peers import PEERS
    from specplug.simulate.report import Report

    given = nested_options(options or [])
    named = {"options": given} if given else {}
    default = load_settings(named, flags_origin="command line", registry=default_registry()).settings
    judged = [
        Policy(name, name, {part: given[part] for part in name.split(JOINS_POLICIES) if part in given})
        for name in policies or [default.policy]
    ]
    judged_cases = cases(
        surfaces or [],
        modes or MODES,
        traffic or TRAFFIC,
        gamma=gamma,
        held_out=held_out,
        lag=lag,
        requests=requests,
        max_running=max_running,
        limits=(cached_share, cached_context),
        disturbance=(noise, drift),
        seed=seed,
    )
    names = [] if no_peers else [*PEERS]
    found = trajectories(
        recording,
        traces,
        proposer=proposer or default.proposer,
        options=given,
        tokenizer=tokenizer,
        workloads=workloads or [],
        limit=limit,
        seed=seed,
        quiet=as_json,
    )
    if gamma > found.draft_length:
        raise SettingsError.build("drafts too short", who="--gamma", found=gamma, expected=f"<= {found.draft_length}")
    with progress(quiet=as_json) as bar:
        task = bar.add_task("simulating", total=runs_of(judged_cases, len(judged), names))
        verdicts = judge(judged_cases, judged, found, peers=names, progress=lambda: bar.advance(task))
    report = Report(verdicts, [policy.label for policy in judged])
    if as_json:
        print_json(report.as_dict())
    else:
        for table in report.tables():
            print_table(table.title, table.columns, table.rows)
        for label, kinds in report.faults().items():
            console().print(Text(f"Faults of {label}: {kinds}", style="red"))
    if report.faults():
        raise typer.Exit(1)
