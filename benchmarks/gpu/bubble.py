"""What drafting adds to the steps of a model: the time of whole steps with it, over that of steps without it.

A step is a model's (matrix products of a chosen duration), the verification, and the drafting.  The host runs at most
two steps in advance, as in an engine.  All arms take turns, round by round; a figure is a round's wall time per step.
Ratios are to the arm without drafts, which verifies as much, round by round.

A control arm decodes the same texts and waits for the device after each step.  It must end with the same drafts, or
the steps that overlap disturb each other.
"""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.decoding import Arm, Batch, Lookup, Plain
from benchmarks.gpu.device import Device
from benchmarks.gpu.drafting import LOOKUP, unequal
from benchmarks.gpu.texts import Tokens

WITHOUT = "no drafts"
IN_ADVANCE = 2
"""Steps that the host launches before it waits for the first of them."""


@dataclass(frozen=True)
class Sizes:
    """What is measured: K, B and context of each case, the model's step, and how often."""

    cases: Sequence[tuple[int, int, int]]
    milliseconds: float
    rounds: int
    steps: int


def measure(
    device: Device, tokens: Tokens, finished: Sequence[torch.Tensor], sizes: Sizes, deadline: float
) -> dict[str, Any]:
    """Return the figures of each case, the cases that were left out, and what failed; see `drafting.measure`."""
    cases: list[dict[str, Any]] = []
    left_out, wrong = [], []
    model = device.model_step(sizes.milliseconds)
    for gamma, rows, context in sizes.cases:
        where = f"{gamma} tokens, batch {rows}, context {context}"
        if time.monotonic() > deadline:
            left_out.append(f"{where}: no time is left")
            continue
        try:
            case = _case(device, model, tokens, finished, sizes, gamma, rows, context)
        except Exception as error:  # what the other cases found is worth keeping
            traceback.print_exc()
            wrong.append(f"{where}: raised {type(error).__name__}: {error}")
            continue
        wrong += [f"{where}: {stated}" for stated in case["wrong"]]
        cases.append(case)
        print(f"  {json.dumps(case)}", flush=True)
    return {"cases": cases, "left_out": left_out, "wrong": wrong, "model_ms": sizes.milliseconds}


def _case(
    device: Device,
    model: Callable[[], object],
    tokens: Tokens,
    finished: Sequence[torch.Tensor],
    sizes: Sizes,
    gamma: int,
    rows: int,
    context: int,
) -> dict[str, Any]:
    batch = Batch(tokens, rows, context, gamma, sizes.steps * (sizes.rounds + 1), device.device)
    lookup, control = [Lookup(name, batch, finished) for name in (LOOKUP, f"{LOOKUP}, waiting")]
    arms: list[Arm] = [Plain(WITHOUT, batch), lookup]
    try:
        gc.collect()
        gc.disable()
        found: dict[str, list[float]] = {arm.name: [] for arm in arms}
        for number in range(-1, sizes.rounds):
            for turn in range(len(arms)):
                arm = arms[(number + turn) % len(arms)]
                taken = _round(device, model, arm, sizes.steps)
                if number >= 0:  # the first round is to warm up
                    found[arm.name].append(taken)
            _waiting_round(device, control, sizes.steps)
        wrong = lookup.faults() + control.faults() + unequal(lookup, control)
    finally:
        gc.enable()
        lookup.close()
        control.close()
    per_step = {arm.name: int(arm.emitted) / (rows * arm.steps) for arm in arms}
    shape = {"draft_length": gamma, "batch": rows, "context": context}
    return {**shape, "ms_per_step": found, "tokens_per_step": per_step, "wrong": wrong}


def _round(device: Device, model: Callable[[], object], arm: Arm, steps: int) -> float:
    """Return milliseconds per step."""
    in_flight: deque[Callable[[], object]] = deque()
    device.synchronize()
    began = time.perf_counter_ns()
    for _ in range(steps):
        model()
        arm.advance()
        arm.draft()
        in_flight.append(device.recorded())
        if len(in_flight) > IN_ADVANCE:
            in_flight.popleft()()
    device.synchronize()
    return (time.perf_counter_ns() - began) / 1e6 / steps


def _waiting_round(device: Device, arm: Arm, steps: int) -> None:
    for _ in range(steps):
        arm.advance()
        arm.draft()
        device.synchronize()
