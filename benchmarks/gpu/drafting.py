"""Time of drafting on a device: a step in its stream that drafts on the host, beside peers on the device.

For each batch size and context length, all arms decode the same texts, in turns, step by step.  A step's device time is
that between CUDA events before its first launch and after its last, with everything launched by then; its host time is
that of the call.  An arm whose host function does nothing shows the least that such a step takes.  Each round's figure
is its median step.  Ratios are taken round by round.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.decoding import Arm, Batch, Corpora, Empty, OnDevice, Scanned, Streamed, Suffix
from benchmarks.gpu.device import Device, Timing
from benchmarks.gpu.texts import Tokens

SCAN, SUFFIX, EMPTY = "scan", "suffix decoding", "empty function"
POLLED = "host, called by a thread that polls"
WARM_UP, CHECKED_ROWS = 4, 8


@dataclass(frozen=True)
class Sizes:
    """What is measured: K, B and context of each case, the numbers of threads, and how often.

    A deadline leaves out the last cases.
    """

    cases: Sequence[tuple[int, int, int]]
    threads: Sequence[int]
    rounds: int
    steps: int


def measure(
    device: Device, tokens: Tokens, finished: Sequence[torch.Tensor], sizes: Sizes, deadline: float
) -> dict[str, Any]:
    """Return the figures of each case, the cases that were left out, and what failed.

    Args:
        device: to draft on.
        tokens: texts to decode.
        finished: responses that suffix decoding drafts from as well, [N] int32 each.
        sizes: what to measure.
        deadline: by `time.monotonic`; no case begins after it.
    """
    cases: list[dict[str, Any]] = []
    left_out, wrong = [], []
    corpora = Corpora.of(finished, device.device)
    for gamma, rows, context in sizes.cases:
        where = f"{gamma} tokens, batch {rows}, context {context}"
        seconds = cases[-1]["seconds"] * rows * context / (cases[-1]["batch"] * cases[-1]["context"]) if cases else 0
        if reason := _reason(device, rows, context, len(sizes.threads) + 1, deadline - seconds):
            left_out.append(f"{where}: {reason}")
            continue
        began = time.monotonic()
        try:
            case = _case(device, tokens, corpora, sizes, gamma, rows, context)
        except Exception as error:  # what the other cases found is worth keeping
            traceback.print_exc()
            wrong.append(f"{where}: raised {type(error).__name__}: {error}")
            continue
        case["seconds"] = time.monotonic() - began
        wrong += [f"{where}: {stated}" for stated in case["wrong"]]
        cases.append(case)
        print(f"  {json.dumps(case)}", flush=True)  # in case that the run is ended from outside
    return {"cases": cases, "left_out": left_out, "wrong": wrong}


def _reason(device: Device, rows: int, context: int, arms: int, deadline: float) -> str:
    """Return why a case is left out, or an empty string."""
    on_host, on_device = Batch.bytes_needed(rows, context)
    if time.monotonic() > deadline:
        return "no time is left"
    if arms * on_host > 0.6 * _free_host_bytes():
        return f"needs {arms * on_host / 1e9:.1f} GB of host memory"
    if device.device.type == "cuda" and 2 * on_device > torch.cuda.mem_get_info()[0]:
        return f"needs {on_device / 1e9:.1f} GB on the device"
    return ""


def _free_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _case(
    device: Device, tokens: Tokens, corpora: Corpora, sizes: Sizes, gamma: int, rows: int, context: int
) -> dict[str, Any]:
    batch = Batch(tokens, rows, context, gamma, WARM_UP + sizes.rounds * sizes.steps, device.device)
    began = time.monotonic()
    streamed = [Streamed(threads_name(count), batch, threads=count) for count in sizes.threads]
    if device.device.type == "cuda":
        streamed.append(Streamed(POLLED, batch, threads=sizes.threads[-1], polled=True))
    on_device = [Scanned(SCAN, batch), Suffix(SUFFIX, batch, corpora)]
    arms: list[Arm] = [*streamed, Empty(EMPTY, batch), *on_device]
    try:
        for arm in streamed:
            arm.ready()
        intake = time.monotonic() - began
        gc.collect()
        gc.disable()
        timings = _decode(device, arms, sizes)
        wrong = differences(streamed, on_device)
    finally:
        gc.enable()
        for arm in streamed:
            arm.close()
    found = {arm.name: _figures(arm, rounds, rows) for arm, rounds in zip(arms, timings, strict=True)}
    shape = {"draft_length": gamma, "batch": rows, "context": context}
    return {**shape, "arms": found, "wrong": wrong, "intake_seconds": intake}


def threads_name(count: int) -> str:
    """Return the name of the arm that drafts on this many threads."""
    return f"host, {count} thread{'s' * (count > 1)}"


def _decode(device: Device, arms: Sequence[Arm], sizes: Sizes) -> list[list[list[Timing]]]:
    """Return each arm's timings by round."""
    found: list[list[list[Timing]]] = [[] for _ in arms]
    for number in range(-1, sizes.rounds):
        rounds: list[list[Timing]] = [[] for _ in arms]
        for step in range(sizes.steps if number >= 0 else WARM_UP):
            for turn in range(len(arms)):
                place = (step + turn) % len(arms)
                arms[place].advance()
                rounds[place].append(device.time(arms[place].draft))
        if number >= 0:  # the first steps are to warm up
            for timings, of_round in zip(found, rounds, strict=True):
                timings.append(of_round)
    return found


def _figures(arm: Arm, rounds: Sequence[Sequence[Timing]], rows: int) -> dict[str, Any]:
    """Return microseconds of device and host for each round, steps that count for nothing, and emitted tokens."""
    valid = [[timing for timing in timings if timing.is_valid] for timings in rounds]
    return {
        "device_us": [statistics.median(it.device for it in timings) if timings else None for timings in valid],
        "host_us": [statistics.median(it.host for it in timings) for timings in rounds],
        "device_waited": sum(map(len, rounds)) - sum(map(len, valid)),
        "tokens_per_step": int(arm.emitted) / (rows * arm.steps),
    }


def differences(streamed: Sequence[Streamed], on_device: Sequence[OnDevice]) -> list[str]:
    """Return all that went wrong in the steps of these arms."""
    faults = [stated for arm in streamed for stated in arm.faults()]
    return faults + unequal(streamed) + unlike_reference(on_device)


def unequal(arms: Sequence[Arm]) -> list[str]:
    """Return which arms ended with other drafts than the first one, although they drafted from the same texts."""
    first = arms[0]
    return [
        f"{arm.name} and {first.name} differ"
        for arm in arms[1:]
        if not (torch.equal(arm.out, first.out) and torch.equal(arm.lengths, first.lengths))
    ]


def unlike_reference(arms: Sequence[OnDevice]) -> list[str]:
    """Return the rows whose last draft is not the reference's, of a few rows of each arm."""
    return [
        f"row {row}: {arm.name} does not draft what its reference drafts"
        for arm in arms
        for row in sorted({int(row) for row in torch.linspace(0, arm.batch.rows - 1, CHECKED_ROWS)})
        if not arm.equals_reference(row)
    ]
