"""Benchmark of drafting on several threads, as a ratio to one thread.

    .venv/bin/python -m benchmarks.match_threads [--threads 2 4] [--batches 64 256] [--pin]

The texts and the batches are those of `benchmarks.match_cost`.  Lookups that differ only in their number of threads
decode them side by side, in turns, step by step.  Ingesting, with learning, and drafting are timed apart.  Figures are
microseconds per step: the median step, and in brackets the fastest tenth's slowest, which counts where other
processes use the same cores.  `--pin` gives each thread a core of its own.

For comparison, two lookups that share nothing draft on two cores at once: cores often share caches, memory or more,
and other processes slow both.

The same run checks that drafts, confidences, sources and learnt tables are equal bit for bit, or prints no figures.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.machine import in_words, machine
from benchmarks.match_cost import WARM_UP, corpus, cut
from benchmarks.peers import note

if TYPE_CHECKING:
    from benchmarks.match_arms import Case, Ours

PARTS = ("ingest", "propose")
Times = dict[str, list[float]]


def arms_of(case: Case, threads: list[int]) -> list[Ours]:
    """Return a lookup for each number of threads, with the prompts in it."""
    from benchmarks.match_arms import Ours

    arms: list[Ours] = [type(f"Ours{count}", (Ours,), {"threads": count})(case) for count in threads]
    for arm in arms:
        for row in range(case.batch):
            arm.insert(row)
        arm.ready(arm.emit([[]] * case.batch))
        arm.proposer.lookup.start_threads()
    return arms


def decode(arms: list[Ours], steps: int) -> tuple[list[Times], list[str]]:
    """Return the microseconds of each arm's steps, and what differs between the arms."""
    found, wrong = [Times(ingest=[], propose=[]) for _ in arms], set[str]()
    for step in range(-WARM_UP, steps):
        order = list(range(len(arms)))
        for k in order[step % len(arms) :] + order[: step % len(arms)]:
            began = time.perf_counter_ns()
            arms[k].ingest()
            between = time.perf_counter_ns()
            arms[k].propose()
            ended = time.perf_counter_ns()
            if step >= 0:
                found[k]["ingest"].append((between - began) / 1e3)
                found[k]["propose"].append((ended - between) / 1e3)
        wrong |= {name for arm in arms[1:] for name in differing(arms[0], arm)}
        for arm in arms:
            arm.ready(arm.emit(arm.drafts()))
    return found, sorted(wrong)


def differing(one: Ours, other: Ours) -> list[str]:
    """Return the names of what is not equal bit for bit."""
    drafts = ((name, getattr(one.draft, name).numpy(), getattr(other.draft, name).numpy())
              for name in ("token_ids", "confidence", "lengths", "source"))  # fmt: skip
    learnt = ((name, getattr(one.proposer.lookup.tables, name), getattr(other.proposer.lookup.tables, name))
              for name in ("votes", "evidence", "contexts"))  # fmt: skip
    return [name for name, left, right in (*drafts, *learnt) if left.tobytes() != right.tobytes()]


def pin(arms: list[Ours]) -> None:
    """Give this thread the first usable core, and each arm's further threads the next ones."""
    cores = sorted(os.sched_getaffinity(0))
    for arm in arms:
        for number, thread in enumerate(arm.proposer.lookup.pool.started, 1):
            os.sched_setaffinity(thread.native_id or 0, {cores[number % len(cores)]})
    os.sched_setaffinity(0, {cores[0]})


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="numbers to compare with 1 (default: 2)")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 128, 256], help="default: 32 to 256")
    parser.add_argument("--context", type=int, default=4096, help="default: 4096")
    parser.add_argument("--draft-length", type=int, default=16, help="gamma (default: 16)")
    parser.add_argument("--steps", type=int, default=200, help="default: 200")
    parser.add_argument("--pin", action="store_true", help="give each thread a core of its own")
    options = parser.parse_args()

    import torch

    from specplug.cli.output import print_table

    torch.set_num_threads(1)
    where, steps = machine(), WARM_UP + options.steps
    note("tokenising Python's library")
    longest = options.context
    text = corpus(longest + max(options.batches) * (longest + (steps + 2) * (options.draft_length + 1)))
    cells, controls = [], []
    for batch in options.batches:
        note(f"batch {batch}")
        affinity = os.sched_getaffinity(0)
        case = cut(text, batch, longest, options.draft_length, longest, steps)
        if len(affinity) > 1:
            controls.append(f"batch {batch}: {apart(case, sorted(affinity), options.steps):.2f}")
        arms = arms_of(case, [1, *options.threads])
        if options.pin:
            pin(arms)
        gc.collect()
        gc.disable()
        found, wrong = decode(arms, options.steps)
        gc.enable()
        os.sched_setaffinity(0, affinity)
        for arm in arms:
            arm.proposer.close()
        if wrong:
            sys.exit(f"no figures, because these depend on the number of threads: {', '.join(wrong)}")
        for part in PARTS:
            for count, times in zip(options.threads, found[1:], strict=True):
                cells.append((str(batch), part, str(count), *_figures(found[0][part], times[part])))
    header = ("batch", "part", "threads", "1 thread, us", "threads, us", "ratio")
    print_table(f"Several threads against one; {in_words(where, max(options.threads))}", header, cells)
    print(f"Two separate lookups on two cores at once, over one alone, halved: {', '.join(controls)}")


def apart(case: Case, cores: list[int], rounds: int) -> float:
    """Return half of the time of two lookups that draft on two cores at once, over the time of one alone.

    They share nothing, so it is 0.5 if neither slows the other down.
    """
    arms, times = arms_of(case, [1, 1]), Times(one=[], two=[])
    barrier = threading.Barrier(2)

    def draft(number: int) -> None:
        os.sched_setaffinity(0, {cores[number]})
        for _ in range(rounds):
            barrier.wait()
            began = time.perf_counter_ns()
            arms[number].propose()
            times["two"].append((time.perf_counter_ns() - began) / 1e3)

    for _ in range(rounds):
        began = time.perf_counter_ns()
        arms[0].propose()
        times["one"].append((time.perf_counter_ns() - began) / 1e3)
    threads = [threading.Thread(target=draft, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _tenth(times["two"]) / 2 / _tenth(times["one"])


def _tenth(times: list[float]) -> float:
    return sorted(times)[len(times) // 10]


def _figures(one: list[float], several: list[float]) -> tuple[str, str, str]:
    pairs = [(statistics.median(it), _tenth(it)) for it in (one, several)]
    ratios = [several / one for one, several in zip(*pairs, strict=True)]
    left, right = (f"{median:.0f} ({fast:.0f})" for median, fast in pairs)
    return left, right, "{:.2f} ({:.2f})".format(*ratios)


if __name__ == "__main__":
    main()
