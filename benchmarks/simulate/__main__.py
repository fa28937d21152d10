"""Policies judged on simulated servers: batch sizes up to 512, and accelerators that this machine lacks.

    python -m benchmarks.simulate
    python -m benchmarks.simulate --policy batch --surface h200-8b --mode ragged --traffic steady:64
    python -m benchmarks.simulate --trajectories drafts.npz --policy fixed --option fixed.gamma=3 --json

The proposer drafts at every position of recorded outputs, so every draft's fate is known; a cost surface gives the time
of each step.  Policies run through the same code as in the engines.  They are compared with no speculation, constant
draft lengths, adaptive policies of other systems, and a clairvoyant.  All figures are simulated; benchmarks/simulate/
README.md says what is modelled.  The exit code is 1 when a policy had a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import note
from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.judge import Case, judge, report, shown
from benchmarks.simulate.modes import modes
from benchmarks.simulate.recording import recorded
from benchmarks.simulate.surface import HELD_OUT, SURFACES
from benchmarks.simulate.traffic import concurrency
from specplug.errors import SpecplugError
from specplug.plugins.specs import JOINS_POLICIES
from specplug.tools.cli.launch import nested_options

OPEN = [name for name in SURFACES if name not in HELD_OUT]
TRAFFIC = ["steady:8", "steady:64", "steady:256", "ramp"]
MODES = list(modes(1))


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; print tables or JSON."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        options, names = nested_options(given.option), given.policy or ["batch"]
        policies = [
            Policy(name, name, {part: options[part] for part in name.split(JOINS_POLICIES) if part in options})
            for name in names
        ]
        rest = {"tokenizer": given.tokenizer, "limit": given.limit, "seed": given.seed}
        drafts = recorded(given.trajectories, given.traces, proposer=given.proposer, options=options, **rest)
        found = report(judge(_cases(given), policies, drafts, peers=not given.no_peers, progress=note), names)
    except SpecplugError as error:
        parser.error(str(error))
    tables = f"Simulated.\n\n{shown(found['runs'])}\n\n{shown(found['comparisons'])}"
    print(json.dumps(found, indent=2) if given.json else tables)
    for label, kinds in found["faults"].items():
        note(f"Faults of {label}: {kinds}")
    return 1 if found["faults"] else 0


def _cases(given: argparse.Namespace) -> Iterator[Case]:
    """Yield a case of each surface, mode and traffic; steady traffic has at least three requests for each place."""
    for name in given.surface or OPEN:
        for mode in given.mode or MODES:
            engine = modes(given.gamma)[mode]
            engine = engine if given.lag is None else replace(engine, lag=given.lag)
            for traffic in given.traffic or TRAFFIC:
                least = 0 if traffic == "ramp" else 3 * concurrency(traffic)
                yield Case(SURFACES[name], engine, traffic, max(given.requests, least), seed=given.seed)


def _traffic(text: str) -> str:
    concurrency(text)
    return text


def _parser() -> argparse.ArgumentParser:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.simulate", description=__doc__, formatter_class=kind)
    add = parser.add_argument
    add("traces", nargs="*", type=Path, help="files or folders of .jsonl traces; by default the shipped ones")
    add("--policy", action="append", help="a policy to judge, several joined by +; repeat; by default batch")
    add("--option", action="append", default=[], metavar="PLUGIN.KEY=VALUE", help="a plug-in's own setting; repeat")
    add("--surface", action="append", choices=SURFACES, help=f"a cost surface; repeat; by default {', '.join(OPEN)}")
    add("--mode", action="append", choices=MODES, help="how rows of different lengths are verified; repeat")
    add("--traffic", action="append", type=_traffic, help="steady:N or rollouts:N, N up to 512, or ramp; repeat")
    add("--requests", type=int, default=400, help="least number of requests")
    add("--gamma", type=int, default=15, choices=range(1, 32), metavar="N", help="most draft tokens per request")
    add("--lag", type=int, choices=range(3), help="steps by which plans are delayed; by default the mode's")
    add("--seed", type=int, default=0, help="seed of the requests' order and of noise")
    add("--no-peers", action="store_true", help="leave the adaptive peers out")
    add("--tokenizer", help="the tokenizer, as for `specplug replay`")
    add("--proposer", default="ngram", help="the proposer that drafts")
    add("--limit", type=int, help="only the first N requests of each workload")
    add("--trajectories", type=Path, help="file of recorded drafts (.npz): read if it exists, otherwise written")
    add("--json", action="store_true", help="print everything as one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
