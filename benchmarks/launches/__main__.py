"""Kernels that a step of the lookup launches on a GPU, and its host time, measured without a GPU.

    .venv-vllm/bin/python -m benchmarks.launches [--rows 1 32 256] [--capability 90] [--json]

`DeviceSteps` takes steps of the proposer `ngram` as vLLM's V2 runner lets it, through Triton's own launcher for NVIDIA
GPUs, over a driver that does nothing.  So no kernel runs, nothing is drafted, and what remains is the host's work: the
CPU time of the thread, its median over the steps.  The driver's own work, 2 to 3 us a launch, is not part of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.launches.driver import install

DRAFT_LENGTH, LENGTH, VOCAB = 15, 8192, 49152
CONTEXT = 1024
WARM_UP, STEPS = 100, 400


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256], help="rows of the batches")
    parser.add_argument("--capability", type=int, default=90, help="compute capability of the GPU, times ten")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        count = install(Path(folder), options.capability)
        _by_kernels()
        found = [measured(rows, count) for rows in options.rows]
    if options.json:
        print(json.dumps({"steps": found, "kernels": compiled()}))
        return
    for step in found:
        print(f"{step['rows']:4d} rows: {step['launches']:g} launches, {step['us']:.0f} us of the host (median)")


def measured(rows: int, count: Callable[[], int]) -> dict[str, float]:
    """Return the launches and the host time of a step of a batch."""
    step = _steps_of(rows)
    times = []
    before = 0
    for number in range(WARM_UP + STEPS):
        if number == WARM_UP:
            before = count()
        began = time.thread_time_ns()
        step()
        times.append(time.thread_time_ns() - began)
    us = statistics.median(times[WARM_UP:]) / 1000
    return {"rows": rows, "launches": (count() - before) / STEPS, "us": us}


def compiled() -> list[dict[str, Any]]:
    """Return the kernels that this process has compiled.

    Each has its `name`, whether it `does_more`, which is what another kernel would do, its assembly as `ptx`, the
    `bytes` of its machine code, and its arguments of which a value or an alignment was `specialised` for.
    """
    from specplug.launching import Launcher
    from specplug.lookup import kernels as lookup
    from specplug.pipeline.device import kernels as device

    found = []
    for launcher in (it for module in (lookup, device) for it in vars(module).values() if isinstance(it, Launcher)):
        for kernel in launcher.compiled.values():
            constants: dict[tuple[int, ...], Any] = kernel.src.constants
            specialised = [path for path, attributes in kernel.src.attrs.items() if attributes]
            specialised += [path for path, value in constants.items() if len(path) > 1 and value is not None]
            more = any(hasattr(value, "arg_names") for value in constants.values())
            asm = {"ptx": kernel.asm["ptx"], "bytes": len(kernel.asm["cubin"])}
            found.append({"name": kernel.metadata.name, "does_more": more, "specialised": specialised, **asm})
    return found


def _by_kernels() -> None:
    """Let the lookup launch its kernels on tensors of the CPU, too."""
    from specplug.lookup import kernels, steps

    def form_for(device: torch.device) -> Any:
        return kernels

    steps.form_for = form_for


def _steps_of(rows: int) -> Callable[[], None]:
    """Return a function that takes a step of a batch."""
    from specplug.assembly import build_draft_stage
    from specplug.interfaces import PluginContext
    from specplug.pipeline.device import kernels
    from specplug.pipeline.device.columns import Launches
    from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
    from specplug.plugins.registry import default_registry
    from specplug.runtime.device_steps import DeviceSteps
    from specplug.runtime.ends import StopDetector
    from specplug.runtime.slots import RowFacts, RunningRequest, SlotAllocator
    from specplug.settings.model import Settings
    from specplug.types.caps import EngineCaps
    from specplug.types.plan import StepPlan
    from specplug.types.request import Request

    device, plan = torch.device("cpu"), StepPlan(DRAFT_LENGTH)
    context = PluginContext(
        EngineCaps(DRAFT_LENGTH), vocab_size=VOCAB, max_slots=rows, max_length=LENGTH, device=device
    )
    stage = build_draft_stage(Settings(proposer="ngram", policy="fixed"), default_registry(), context)
    allocator = SlotAllocator(rows, device, stage.on_event)
    slot_of = {f"request {row}": row for row in range(rows)}
    allocator.engine_slot = slot_of.__getitem__
    slots, ones = torch.arange(rows), torch.ones(rows, dtype=torch.int32)
    table = torch.zeros(rows, LENGTH, dtype=torch.int32)
    engine = EngineRows(slots, CONTEXT * ones, table, ones, 0 * ones)
    outputs = DraftOutputs(torch.zeros(rows, DRAFT_LENGTH, dtype=torch.int64), torch.zeros(rows, DRAFT_LENGTH))
    newest, temperature = slots[:, None], torch.zeros(rows)
    launches = Launches(kernels.begin, kernels.finish)
    stops = StopDetector(rows, DRAFT_LENGTH, device)
    steps = DeviceSteps(stage, allocator.slots, stops, VOCAB, launches, like=(engine, outputs, newest))
    for name in slot_of:
        allocator.start(RunningRequest(Request(name, CONTEXT, LENGTH - CONTEXT), LENGTH, ()))
    names = list(slot_of)
    facts = RowFacts(allocator, names)

    def step() -> None:
        facts.hold(allocator, names)
        steps.take(facts, EngineRows(*engine), DraftOutputs(*outputs), newest, temperature, plan)

    return step


if __name__ == "__main__":
    main()
