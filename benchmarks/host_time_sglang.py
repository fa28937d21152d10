"""Host time that planning takes per decode step of the real SGLang, by policy and batch size.

    .venv-sglang/bin/python -m benchmarks.host_time_sglang [--policies fixed batch] [--batches 1 32 256]

SGLang decodes the shipped model, on a CPU with the tests' stand-ins for its kernels.  What is measured is the CPU time
of the scheduler's thread in specplug's own planning: the plan of a step, the note of its launch and the report of its
results, without slots, drafting and verification.  "cold" are real steps, between which the model evicts the caches:
the median of the first 64 steps of the full batch, and of the later ones.  "warm" is the same planning in a loop of its
own, after these steps: the median and the 99th percentile.  Subtract the policy `fixed` for what a policy adds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine
from benchmarks.peers import note
from specplug.steps.draft_report import DraftReport

FIRST = 64
TOKENS = 200
WARM = 2000
PROMPT = 48
DRAFT_LENGTH = 15


def engine_of(pool: Any, policy: str, batch: int) -> Any:
    """Return an engine that is not running yet."""
    from tests.engines.sglang.engines import Engine
    from tests.engines.sglang.launch import configuration

    settings = {"proposer": "ngram", "policy": policy, "costs": {}, "faults": {"host_deadline_ms": None}}
    launch = configuration(
        "SPECPLUG",
        draft_length=DRAFT_LENGTH,
        settings=settings,
        max_running_requests=max(batch, 8),
        max_total_tokens=max(batch, 8) * 1024,
        disable_radix_cache=True,
    )
    return pool.tenant(Engine, f"{policy}-{batch}", launch)


def watch(scheduler: Any) -> None:
    """Begin to measure in the scheduler's process."""
    drafting = scheduler.draft_worker.drafting
    drafting.timings = []
    spent = [0]

    def metered(owner: Any, name: str, ends_step: bool = False) -> None:
        original = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            before = spent[0]
            began = time.thread_time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                spent[0] = before + time.thread_time_ns() - began  # with what it called, which counts once
                if ends_step:
                    drafting.timings.append((tuple(args[1]), spent[0]))
                    spent[0] = 0

        setattr(owner, name, run)

    metered(drafting.step_planner, "make")
    metered(drafting.results, "settle")
    metered(drafting.results, "verified")
    metered(drafting.results, "add", ends_step=True)


def measured(scheduler: Any) -> dict[str, float]:
    """Return the times in microseconds."""
    drafting = scheduler.draft_worker.drafting
    reqs = max([reqs for reqs, _ in drafting.timings], key=len)
    cold = [spent / 1e3 for others, spent in drafting.timings if len(others) == len(reqs)]
    warm = []
    for _ in range(WARM):
        began = time.thread_time_ns()
        length = drafting.step_planner.make(reqs).draft_length
        fates = [(req.rid, length, min(length, 1)) for req in reqs]
        drafts = DraftReport.of(len(reqs), [0.5 * len(reqs)] * DRAFT_LENGTH)
        drafting.results.add(time.perf_counter(), reqs, length, None, drafts)
        launched, *_ = drafting.results.pending.pop()
        drafting.step_planner.finish(launched, fates, time.perf_counter(), drafts)
        warm.append((time.thread_time_ns() - began) / 1e3)
    median = statistics.median
    found = {"steps": len(cold), "cold, first 64": median(cold[:FIRST]), "cold, later": median(cold[FIRST:] or cold)}
    return found | {"warm": median(warm), "warm, p99": statistics.quantiles(warm, n=100)[-1]}


def main() -> None:
    """Run the benchmark and print the table."""
    from tests.engines.engines import Pool
    from tests.engines.plain import prompts
    from tests.engines.sglang import inside

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["fixed", "batch"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 256])
    options = parser.parse_args()
    print(f"{in_words(machine(), 1)}; microseconds per step")
    text = [token for prompt in prompts() for token in prompt]
    with tempfile.TemporaryDirectory() as logs:
        for batch in options.batches:
            for policy in options.policies:
                note(f"{policy}, batch {batch}")
                pool = Pool(Path(logs), most=1)
                engine = engine_of(pool, policy, batch)
                engine.inside(watch)
                given = [text[row % 97 :][:PROMPT] for row in range(batch)]
                params = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 2.0}  # drafts are seldom right
                engine.call(inside.generate, prompts=given, params=params)
                found = engine.inside(measured)
                pool.close()
                print(f"{policy}, batch {batch}:", ", ".join(f"{name} {each:.0f}" for name, each in found.items()))


if __name__ == "__main__":
    main()
