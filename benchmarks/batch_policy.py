"""Benchmark of the policy `batch` on recorded outputs in mixed traffic, on cost curves that it is not told.

    .venv/bin/python -m benchmarks.batch_policy [TRACES...] [--trajectories drafts.npz] [--json batch.json]

Simulated: requests of all workloads share every step, as in `benchmarks.simulate` (its README.md), and a step's
seconds come from one of three curves of its tokens:

    roofline   max(1, tokens / 256) + 0.02, the policy's own first guess
    smooth     (1 + (tokens / 200)^1.5)^(1 / 1.5), without a kink, arithmetic sooner
    staircase  0.6 + 0.4 / 128 for each started 32 tokens, + 5% while drafting: tiles, and a drafter

For each curve and mode it prints tokens per second relative to no drafts: of the best constant draft length for that
batch size, of vLLM's adaptive verification (`survival`, which is given the curve), and of `batch`, which is not.  The
ramp goes from 8 to 128 requests and back.  `--ablations` runs `batch` without exploration, without its gate, and
without sharing measurements between steps; `--costs` prints how far its predictions of single steps are off.

Without TRACES the shipped ones are replayed.  Ratios only: no time of a machine is in any figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.peers import note
from benchmarks.simulate.engine import Limits
from benchmarks.simulate.judge import NONE, Case, Policy, assess, fixed, shown
from benchmarks.simulate.modes import Mode, modes
from benchmarks.simulate.recording import recorded
from benchmarks.simulate.surface import Host, StepWork
from benchmarks.simulate.traffic import Disturbance, concurrency
from benchmarks.simulate.trajectories import Trajectories

MEMORY_BOUND = 0.01
"""Seconds of a memory-bound step."""

LENGTHS = (1, 3, 7, 15, 31)
BATCH = Policy("batch", "batch")


@dataclass(frozen=True)
class Curve:
    """A cost surface for the simulation in which only tokens, and whether a step drafts, count."""

    name: str
    host: Host = Host(step=0.0, per_row=0.0, drafting=0.0, change=0.0)  # noqa: RUF009 - frozen

    def seconds(self, work: StepWork) -> float:
        """Return the seconds of a step."""
        return MEMORY_BOUND * COSTS[self.name](work.tokens + work.prefill_tokens, work.draft_length > 0)

    forward_seconds = seconds


COSTS = {
    "roofline": lambda tokens, drafts: max(1.0, tokens / 256) + 0.02,
    "smooth": lambda tokens, drafts: (1 + (tokens / 200) ** 1.5) ** (1 / 1.5),
    "staircase": lambda tokens, drafts: 0.6 + 0.4 / 128 * 32 * -(-tokens // 32) + 0.05 * drafts,
}


def case_of(curve: str, mode: Mode, traffic: str, seed: int) -> Case:
    """Return a case without prompt tokens in its steps, as the roofline of a replay has none."""
    requests = 900 if traffic == "ramp" else max(400, 10 * concurrency(traffic))
    surface: Any = Curve(curve)  # all that the simulation uses of a surface
    return Case(surface, mode, traffic, requests, limits=Limits(cached_share=1.0), disturbance=NOISE, seed=seed)


NOISE = Disturbance(noise=0.02, drift=0.0)


def compared(case: Case, trajectories: Trajectories) -> dict[str, Any]:
    """Return the goodput of each arm relative to no drafts, and which constant length was the best."""
    arms = [NONE, *map(fixed, LENGTHS), BATCH]
    if case.mode.name != "padded":
        arms.append(Policy("survival", "survival", peer="survival"))
    found = {arm.label: assess(case, arm, trajectories).goodput for arm in arms}
    best = max([NONE.label, *(f"fixed {length}" for length in LENGTHS)], key=lambda label: found[label])
    return {
        "curve": case.surface.name,
        "mode": case.mode.name,
        "traffic": case.traffic,
        "best_fixed": best,
        **{label: rate / found[NONE.label] for label, rate in found.items()},
        "to_best_fixed": found["batch"] / found[best],
        "to_survival": found["batch"] / found["survival"] if "survival" in found else None,
    }


# -- ablations -------------------------------------------------------------------------------------------------------


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take a part out of the policy: constants of its modules, replaced for one run."""
    with ExitStack() as stack:
        for target, value in ABLATIONS[name].items():
            stack.enter_context(mock.patch(target, value))
        yield


_BOTH = ("specplug_batch.padded", "specplug_batch.ragged")
ABLATIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "exploration": {
        "specplug_batch.gate.Probes.is_due": lambda self, step, *, resumes=False: False,
        **{f"{module}.TRIALS": 0 for module in _BOTH},
    },
    "the gate": {f"{module}.{name}": -1.0 for module in _BOTH for name in ("GAIN_TO_START", "GAIN_TO_KEEP")},
    "sharing": {
        "specplug.cost.step_costs._NEAR": 0,
        "specplug.cost.step_costs.shrunk": lambda counts, corrections, noise: corrections,
        **{f"{module}.size_class": lambda requests: requests for module in _BOTH},
    },
}


def ablated(case: Case, trajectories: Trajectories) -> dict[str, Any]:
    """Return the goodput of `batch` without each part, relative to that of the whole."""
    found = {}
    for name in ABLATIONS:
        with without(name):
            found[name] = assess(case, BATCH, trajectories).goodput
    return {
        "curve": case.surface.name,
        "mode": case.mode.name,
        "traffic": case.traffic,
        **{f"without {name}": rate / found["nothing"] for name, rate in found.items() if name != "nothing"},
    }


# -- errors of the cost model ----------------------------------------------------------------------------------------


def cost_errors(case: Case, trajectories: Trajectories) -> dict[str, Any]:
    """Return the relative errors of predicted seconds: of every tenth step, which is never learnt from.

    A step is predicted when it was run, from those before it; noise of 2% is in what it is compared with.
    """
    from specplug.cost import StepCosts

    learn, wrong = StepCosts.observe, []

    def observe(self: StepCosts, cost: Any) -> None:
        if self._seen % 10 or not self.is_measured or cost.prompt_tokens:
            return learn(self, cost)
        self._seen += 1
        given = (cost.requests, cost.context_tokens, [cost.tokens], [cost.draft_length])
        wrong.append(abs(float(np.log(self.seconds(*given)[0] / cost.seconds))))
        return None

    with mock.patch.object(StepCosts, "observe", observe):
        assess(case, BATCH, trajectories)
    late = wrong[len(wrong) // 4 :]
    return {
        "curve": case.surface.name,
        "mode": case.mode.name,
        "traffic": case.traffic,
        "steps": len(wrong),
        "median_error": float(np.median(wrong)),
        "median_error_later": float(np.median(late)),
        "p90_error_later": float(np.quantile(late, 0.9)),
    }


# -- the command -----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; print tables, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--trajectories", type=Path, help="recorded drafts: read if the file exists, else written")
    parser.add_argument("--tokenizer", help="the tokenizer, as for `specplug replay`")
    parser.add_argument("--mode", nargs="+", default=list(modes(1)), choices=list(modes(1)))
    parser.add_argument("--traffic", nargs="+", default=["steady:8", "steady:32", "steady:64", "steady:128", "ramp"])
    parser.add_argument("--curve", nargs="+", default=list(COSTS), choices=list(COSTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    run = ablated if given.ablations else cost_errors if given.costs else compared
    trajectories = recorded(given.trajectories, given.traces, tokenizer=given.tokenizer, seed=given.seed)
    rows = []
    for curve in given.curve:
        for mode in map(modes(max(LENGTHS)).__getitem__, given.mode):
            for traffic in given.traffic:
                note(f"{curve}, {mode.name}, {traffic}")
                rows.append(run(case_of(curve, mode, traffic, given.seed), trajectories))
    print(shown(rows))
    if given.json:
        given.json.write_text(json.dumps({"simulated": True, "seed": given.seed, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
