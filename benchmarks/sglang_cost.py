"""Benchmark of specplug's cost in an SGLang server that drafts nothing, with one token per request and step, by part.

    make setup-sglang
    .venv-sglang/bin/python -m benchmarks.sglang_cost [--batches 1 8 32] [--json cost.json]

Batches decode on the shipped model with overlap scheduling.  The host time inside specplug's worker is
measured at every step by part (see `benchmarks.sglang_clock`), separately from SGLang's own time within it.  The ratios
compare the times of whole answers of a fixed length with those of two other engines, all in turn on the same machine:
one without speculation, and the floor, SGLang's smallest speculative algorithm, which drafts nothing either (see
`benchmarks/plugins/specplug_floor.py`).  They are medians, with a bootstrap interval; the run checks that all give the
same tokens.  The arm "the floor" compares the floor itself with no speculation.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import interval, note

PLUGINS = Path(__file__).parent / "plugins"
PROMPT = 32  # tokens of each prompt

NONE, FLOOR = "no speculation", "the floor"

ARMS: dict[str, dict[str, Any] | None] = {
    FLOOR: None,
    "policy none": {"proposer": "silent", "policy": "none"},
    "mode off": {"proposer": "silent", "mode": "off"},
    "nothing found, on the device": {"proposer": "silent"},
    "nothing found, on the host": {"proposer": "silent-host"},
    "nothing found, ngram": {"proposer": "ngram", "options": {"ngram": {"min_n": 64, "max_n": 64}}},
}


def answers(engine: Any, batch: int, tokens: int, seed: int) -> dict[str, Any]:
    """Answer a batch of random prompts; runs in an engine's process."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(100, 2000) for _ in range(PROMPT)] for _ in range(batch)]
    params = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    began = time.perf_counter()
    outputs = engine.generate(input_ids=prompts, sampling_params=params)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "token_ids": [list(output["output_ids"]) for output in outputs]}


def begin(scheduler: Any) -> None:
    """Start the clock; runs in a scheduler's process, like the next function."""
    from benchmarks.sglang_clock import install

    install(scheduler).clear()
    scheduler.specplug_steps = scheduler.draft_worker.drafting.step_planner.steps


def microseconds(scheduler: Any) -> dict[str, float]:
    """Return, by part, the mean microseconds of a step since `begin`."""
    from benchmarks.sglang_clock import PARTS, install

    meter = install(scheduler)
    steps = scheduler.draft_worker.drafting.step_planner.steps - scheduler.specplug_steps
    return {part: meter.nanoseconds[part] / 1e3 / steps for part in PARTS}


def measure(engine: Any, others: dict[str, Any], batch: int, options: argparse.Namespace, ours: bool) -> dict[str, Any]:
    """Return one row: times by part if the engine is `ours`, and ratios of answer times by name of the other engine."""
    ratios: dict[str, list[float]] = {name: [] for name in others}
    parts, same = [], True
    for number in range(options.rounds + 1):
        requested = {"batch": batch, "tokens": options.tokens, "seed": number}
        if ours:
            engine.inside(begin)
        turn = [engine, *others.values()]
        turn = turn[number % len(turn) :] + turn[: number % len(turn)]
        found = {one: one.call(answers, **requested) for one in turn}
        if number:  # the first round warms up
            parts += [engine.inside(microseconds)] if ours else []
            for name, other in others.items():
                ratios[name].append(found[engine]["seconds"] / found[other]["seconds"])
        same = same and all(one["token_ids"] == found[engine]["token_ids"] for one in found.values())
    return {
        "batch": batch,
        "parts": {part: statistics.median(one[part] for one in parts) for part in parts[0]} if ours else {},
        "ratios": {name: interval(pairs) for name, pairs in ratios.items()},
        "identical": same,
    }


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per arm and batch size."""
    from tests.engines.engines import Pool
    from tests.engines.sglang.engines import Engine

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as logs:
        pool = Pool(Path(logs), most=3)
        try:
            none = pool.tenant(Engine, "baseline", launch(options, None, None))
            floor = pool.tenant(Engine, "floor", launch(options, "FLOOR", None))
            for name in options.arms:
                note(f"{name}: starting")
                settings = ARMS[name]
                engine, others = floor, {NONE: none}
                if settings is not None:
                    tenant = name.replace(" ", "-").replace(",", "")
                    engine = pool.tenant(Engine, tenant, launch(options, "SPECPLUG", settings))
                    others[FLOOR] = floor
                for batch in options.batches:
                    note(f"{name}: batch {batch}")
                    rows.append({"arm": name, **measure(engine, others, batch, options, settings is not None)})
                if settings is not None:
                    engine.stop()
        finally:
            pool.close()
    return rows


def launch(options: argparse.Namespace, algorithm: str | None, settings: dict[str, Any] | None) -> Any:
    """Return the configuration of a server with this algorithm, and with these settings of specplug."""
    from tests.engines.sglang.launch import configuration

    same: dict[str, Any] = {
        "max_running_requests": max(options.batches),
        "max_total_tokens": max(options.batches) * 512,
        "disable_radix_cache": True,
    }
    if algorithm is None:
        return configuration(**same)
    stated = json.dumps({**(settings or {}), "faults": {"host_deadline_ms": None}})
    found = configuration(algorithm, environment={"SPECPLUG_CONFIG": stated}, **same)
    paths = f"{found.always['PYTHONPATH']}:{PLUGINS}"
    return type(found)(found.arguments, {**found.environment, "PYTHONPATH": paths})


def report(rows: list[dict[str, Any]], title: str) -> None:
    """Print the table."""
    from benchmarks.sglang_clock import PARTS
    from specplug.cli.output import print_table

    cells = [
        (
            row["arm"],
            str(row["batch"]),
            *(f"{row['parts'][part]:.0f}" if row["parts"] else "" for part in PARTS),
            *(stated(row, name) for name in (NONE, FLOOR)),
        )
        for row in rows
    ]
    ratios = (f"answer time over {NONE}", f"over {FLOOR}")
    print_table(title, ("arm", "batch", *(f"{part} us" for part in PARTS), *ratios), cells)


def stated(row: dict[str, Any], name: str) -> str:
    """Return a cell with the ratio to another engine."""
    if not row["identical"]:
        return "outputs differ"
    return "{:.3f}  ({:.3f} to {:.3f})".format(*row["ratios"][name]) if name in row["ratios"] else ""


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="default: all")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="default: 1 8 32")
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds (default: 9)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of an answer (default: 48)")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    rows, where, used = run(options), machine(), versions("sglang", "torch", "specplug")
    report(rows, f"{in_words(where, 1)}; SGLang {used['sglang']}, overlapped; host microseconds per step")
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": stated, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    if not all(row["identical"] for row in rows):
        sys.exit("outputs differ from those without speculation")


if __name__ == "__main__":
    main()
