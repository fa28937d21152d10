"""Time of drafting on a device: a step in its stream, beside one whose proposer does nothing.

For each batch size and context length, all arms decode the same texts, in turns, step by step.  A step's device time is
that between CUDA events before its first launch and after its last, with everything launched by then; its host time is
that of the call.  Each round's figure is its median step.  Ratios are taken round by round.

A further arm has its rows in another order.  It must end with the same drafts and the same memory: what is drafted may
not depend on the order in which programs run.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.decoding import Arm, Batch, Lookup
from benchmarks.gpu.device import Device, Timing
from benchmarks.gpu.texts import Tokens

LOOKUP, EMPTY, PERMUTED = "ngram", "no proposer", "ngram, rows in another order"
WARM_UP = 4


@dataclass(frozen=True)
class Sizes:
    """What is measured: K, B and context of each case, and how often.

    A deadline leaves out the last cases.
    """

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
        finished: responses that are drafted from as well, [N] int32 each.
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
    if time.monotonic() > deadline:
        return "no time is left"
    needed = Batch.bytes_needed(rows, context)
    if device.device.type == "cuda" and needed > torch.cuda.mem_get_info()[0]:
        return f"needs {needed / 1e9:.1f} GB on the device"
    return ""


def _case(
    device: Device,
    tokens: Tokens,
    finished: Sequence[torch.Tensor],
    sizes: Sizes,
    gamma: int,
    rows: int,
    context: int,
) -> dict[str, Any]:
    batch = Batch(tokens, rows, context, gamma, WARM_UP + sizes.rounds * sizes.steps, device.device)
    lookup, permuted = Lookup(LOOKUP, batch, finished), Lookup(PERMUTED, batch, finished, range(rows))
    arms: list[Arm] = [lookup, Lookup(EMPTY, batch, drafts=False), permuted]
    gc.collect()
    gc.disable()
    try:
        timings = _decode(device, arms, sizes)
    finally:
        gc.enable()
    wrong = [*lookup.faults(), *unlike(lookup, permuted)]
    found = {arm.name: _figures(arm, rounds, rows) for arm, rounds in zip(arms[:2], timings, strict=False)}
    return {"draft_length": gamma, "batch": rows, "context": context, "arms": found, "wrong": wrong}


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


def unlike(one: Lookup, other: Lookup) -> list[str]:
    """Return in what two arms differ that have drafted for the same texts."""
    mine, theirs = one.state(), other.state()
    return [f"{one.name} and {other.name}: {name} differ" for name in mine if not torch.equal(mine[name], theirs[name])]
