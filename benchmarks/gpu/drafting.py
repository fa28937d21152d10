"""Time of drafting on a device: a step of lookup in its stream.

For each batch size and context length, texts are decoded step by step.  A step's device time is that between CUDA
events before its first launch and after its last, with everything launched by then; its host time is that of the call.
Each round's figure is its median step.  Where it does not take long, the same steps are taken on the CPU, by the form
for CPUs, and must end with the same drafts.
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

from benchmarks.gpu.decoding import Arm, Batch, Lookup
from benchmarks.gpu.device import Device, Timing
from benchmarks.gpu.texts import Tokens

LOOKUP, ON_CPU = "lookup", "lookup on the CPU"
WARM_UP = 4
MOST_COMPARED = 1 << 18
"""Tokens of the texts of the largest batch that is decoded on the CPU, too."""


@dataclass(frozen=True)
class Sizes:
    """What is measured: K, B and context of each case, and how often.  A deadline leaves out the last cases."""

    cases: Sequence[tuple[int, int, int]]
    rounds: int
    steps: int


def measure(
    device: Device, tokens: Tokens, finished: Sequence[torch.Tensor], sizes: Sizes, deadline: float
) -> dict[str, Any]:
    """Return the figures of each case, the cases that were left out, and what failed.

    Args:
        device: to draft on.
        tokens: texts to decode.
        finished: responses that lookup drafts from as well, [N] int32 each.
        sizes: what to measure.
        deadline: by `time.monotonic`; no case begins after it.
    """
    cases: list[dict[str, Any]] = []
    left_out, wrong = [], []
    for gamma, rows, context in sizes.cases:
        where = f"{gamma} tokens, batch {rows}, context {context}"
        seconds = cases[-1]["seconds"] * rows * context / (cases[-1]["batch"] * cases[-1]["context"]) if cases else 0
        if reason := _reason(device, rows, context, deadline - seconds):
            left_out.append(f"{where}: {reason}")
            continue
        began = time.monotonic()
        try:
            case = _case(device, tokens, finished, sizes, gamma, rows, context)
        except Exception as error:  # what the other cases found is worth keeping
            traceback.print_exc()
            wrong.append(f"{where}: raised {type(error).__name__}: {error}")
            continue
        case["seconds"] = time.monotonic() - began
        wrong += [f"{where}: {stated}" for stated in case["wrong"]]
        cases.append(case)
        print(f"  {json.dumps(case)}", flush=True)  # in case that the run is ended from outside
    return {"cases": cases, "left_out": left_out, "wrong": wrong}


def _reason(device: Device, rows: int, context: int, deadline: float) -> str:
    """Return why a case is left out, or an empty string."""
    on_host, on_device = Batch.bytes_needed(rows, context)
    if time.monotonic() > deadline:
        return "no time is left"
    if 2 * on_host > 0.6 * _free_host_bytes():
        return f"needs {2 * on_host / 1e9:.1f} GB of host memory"
    if device.device.type == "cuda" and 2 * on_device > torch.cuda.mem_get_info()[0]:
        return f"needs {on_device / 1e9:.1f} GB on the device"
    return ""


def _free_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _case(
    device: Device,
    tokens: Tokens,
    finished: Sequence[torch.Tensor],
    sizes: Sizes,
    gamma: int,
    rows: int,
    context: int,
) -> dict[str, Any]:
    steps = WARM_UP + sizes.rounds * sizes.steps
    arm = Lookup(LOOKUP, Batch(tokens, rows, context, gamma, steps, device.device), finished)
    gc.collect()
    gc.disable()
    try:
        timings = _decode(device, arm, sizes)
        wrong = arm.faults()
        if rows * context <= MOST_COMPARED:
            wrong += unequal(arm, _decoded_on_cpu(tokens, finished, gamma, rows, context, steps))
    finally:
        gc.enable()
        arm.close()
    return {"draft_length": gamma, "batch": rows, "context": context, **_figures(arm, timings), "wrong": wrong}


def _decoded_on_cpu(
    tokens: Tokens, finished: Sequence[torch.Tensor], gamma: int, rows: int, context: int, steps: int
) -> Lookup:
    arm = Lookup(ON_CPU, Batch(tokens, rows, context, gamma, steps, torch.device("cpu")), finished)
    for _ in range(steps):
        arm.advance()
        arm.draft()
    arm.close()
    return arm


def _decode(device: Device, arm: Arm, sizes: Sizes) -> list[list[Timing]]:
    """Return the timings by round."""
    found: list[list[Timing]] = []
    for number in range(-1, sizes.rounds):
        timings = []
        for _ in range(sizes.steps if number >= 0 else WARM_UP):
            arm.advance()
            timings.append(device.time(arm.draft))
        if number >= 0:  # the first steps are to warm up
            found.append(timings)
    return found


def _figures(arm: Arm, rounds: Sequence[Sequence[Timing]]) -> dict[str, Any]:
    """Return microseconds of device and host for each round, steps that count for nothing, and emitted tokens."""
    valid = [[timing for timing in timings if timing.is_valid] for timings in rounds]
    return {
        "device_us": [statistics.median(it.device for it in timings) if timings else None for timings in valid],
        "host_us": [statistics.median(it.host for it in timings) for timings in rounds],
        "device_waited": sum(map(len, rounds)) - sum(map(len, valid)),
        "tokens_per_step": int(arm.emitted) / (arm.batch.rows * arm.steps),
    }


def unequal(arm: Arm, other: Arm) -> list[str]:
    """Return whether two arms ended with other drafts, although they drafted from the same texts."""
    same = torch.equal(arm.out.cpu(), other.out.cpu()) and torch.equal(arm.lengths.cpu(), other.lengths.cpu())
    return [] if same else [f"{arm.name} and {other.name} differ"]
