"""Kernels that a step of the lookup launches on a GPU, and its host time, measured without a GPU.

    .venv-vllm/bin/python -m benchmarks.launches [--rows 1 32 256] [--engine sglang] [--capability 90] [--json]

`DeviceSteps` takes steps of the proposer `ngram` as vLLM's V2 runner or SGLang's worker lets it, there with the kernels
around verification, through Triton's own launcher for NVIDIA GPUs, over a driver that does nothing.  So no kernel runs,
nothing is drafted, and what remains is the host's work: the CPU time of the thread, its median over the steps.  The
driver's own work, 2 to 3 us a launch, is not part of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.launches.driver import by_kernels, install
from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.plugins.registry import default_registry
from specplug.settings.model import Settings
from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug.steps.device_steps import DeviceSteps, Launches
from specplug.steps.draft_stage import DraftStage
from specplug.steps.rows import Rows
from specplug.steps.slots import RunningRequest, SlotAllocator
from specplug.steps.stops import StopDetector
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.request import Request
from specplug.types.step import StepPlan

DRAFT_LENGTH, LENGTH, VOCAB = 15, 8192, 49152
CONTEXT = 1024
WARM_UP, STEPS = 100, 400
CPU = torch.device("cpu")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256], help="rows of the batches")
    parser.add_argument("--engine", choices=STEPS_OF, default="vllm", help="whose steps")
    parser.add_argument("--capability", type=int, default=90, help="compute capability of the GPU, times ten")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        count = install(Path(folder), options.capability)
        by_kernels()
        found = [measured(STEPS_OF[options.engine](rows), rows, count) for rows in options.rows]
    if options.json:
        print(json.dumps({"steps": found, "kernels": compiled()}))
        return
    for step in found:
        print(f"{step['rows']:4d} rows: {step['launches']:g} launches, {step['us']:.0f} us of the host (median)")


def measured(step: Callable[[], None], rows: int, count: Callable[[], int]) -> dict[str, float]:
    """Return the launches and the host time of a step of a batch."""
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
    from specplug.steps.kernels import launches as device

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


def _stage_of(rows: int, caps: EngineCaps) -> tuple[DraftStage, SlotAllocator]:
    """Return a draft stage of `ngram`, and its slots, one for each row."""
    context = PluginContext(caps, vocab_size=VOCAB, max_slots=rows, max_length=LENGTH, device=CPU)
    stage = build_draft_stage(Settings(proposer="ngram", policy="fixed"), default_registry(), context, grammars=True)
    return stage, SlotAllocator(rows, CPU, stage.on_event)


def _start(allocator: SlotAllocator, names: list[str]) -> None:
    """Let requests run in the slots."""
    allocator.engine_slot = names.index
    for name in names:
        allocator.start(RunningRequest(Request(name, CONTEXT, LENGTH - CONTEXT), LENGTH, ()))


def _step_of_vllm(rows: int) -> Callable[[], None]:
    """Return a function that takes a step of a batch."""
    from specplug.steps.kernels import launches as kernels

    stage, allocator = _stage_of(rows, EngineCaps(DRAFT_LENGTH))
    slots, ones = torch.arange(rows), torch.ones(rows, dtype=torch.int32)
    table = torch.zeros(rows, LENGTH, dtype=torch.int32)
    engine = EngineTensors(slots, CONTEXT * ones, table, ones, 0 * ones)
    outputs = DraftOutputs(torch.zeros(rows, DRAFT_LENGTH, dtype=torch.int64), torch.zeros(rows, DRAFT_LENGTH))
    newest, temperature = slots[:, None], torch.zeros(rows)
    launches = Launches(kernels.begin, kernels.finish)
    stops = StopDetector(rows, DRAFT_LENGTH, CPU)
    steps = DeviceSteps(stage, allocator.slots, stops, VOCAB, launches, like=(engine, outputs, newest))
    names = [f"request {row}" for row in range(rows)]
    _start(allocator, names)
    facts = Rows(allocator, names)
    plan = StepPlan(DRAFT_LENGTH)

    def step() -> None:
        facts.are_of(names)
        steps.take(facts, EngineTensors(*engine), DraftOutputs(*outputs), newest, temperature, plan)

    return step


def _step_of_sglang(rows: int) -> Callable[[], None]:
    """Return a function that takes a step of a batch: it drafts, and prepares and reports their verification."""
    from specplug.steps.kernels import launches as kernels
    from specplug_sglang.scheduler.batches import Decoding
    from specplug_sglang.scheduler.drafts import Drafts
    from specplug_sglang.verification import kernels as verification
    from specplug_sglang.verification.trees import TokenTable

    caps = EngineCaps(DRAFT_LENGTH, ragged=Ragged.PADDED)
    stage, allocator = _stage_of(rows, caps)
    table = TokenTable(rows, LENGTH, DRAFT_LENGTH + 1, CPU)
    drafts = Drafts(stage, table, allocator.slots, caps, VOCAB, launches=Launches(kernels.begin, kernels.finish))
    drafts._reads_lengths = False  # as on a GPU
    names = [f"request {row}" for row in range(rows)]
    _start(allocator, names)
    reqs: list[Any] = [SimpleNamespace(rid=name, grammar=None) for name in names]
    batch_rows, plan = Rows(allocator, names, reqs), StepPlan(DRAFT_LENGTH)
    slots = torch.arange(rows)
    before = torch.full_like(slots, CONTEXT)
    ones = torch.ones(rows, dtype=torch.int32)
    predict = torch.zeros(rows * table.max_emitted, dtype=torch.int32)
    index = torch.zeros(rows, table.max_emitted, dtype=torch.int32)

    def step() -> None:
        batch_rows.are_of(reqs)
        batch = Decoding(reqs, batch_rows, slots, before, False)
        draft = drafts.propose(batch, DRAFT_LENGTH, plan)
        assert draft is not None
        verification.verification(draft, table, slots, before, table.tokens)
        verification.append(table, slots, before, predict, index, ones)
        drafts.observe(batch, draft, ones)

    return step


STEPS_OF = {"vllm": _step_of_vllm, "sglang": _step_of_sglang}


if __name__ == "__main__":
    main()
