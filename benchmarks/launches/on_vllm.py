"""Steps of the real vLLM V2 on a CPU, whose drafter's kernels are launched over the driver that does nothing.

    python -m benchmarks.launches.on_vllm TASK

A process of its own, in which Triton's interpreter is on, for `benchmarks.host_time_v2`.  The task is JSON: "arguments"
of `LLM`, "batch", "steps", and whether to count "functions".  The last line of its output is JSON, too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.host_clock import PARTS, PROPOSER, VLLM, Meter, wrap_hook, wrap_scheduler
from benchmarks.launches.driver import by_kernels, install
from tests.engines.launch import ROOT

KERNELS, MODEL = "kernels", "model"
WARM_UP, PROFILED = 20, 16
NGRAM_GPU = ("_ngram_scan_kernel", "_ngram_finalize_kernel")
OWN = tuple(f"{ROOT / folder}{os.sep}" for folder in ("specplug", "adapters", "policies", "proposers"))


def main() -> None:
    """Start the engine, run its steps, and print what was measured."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        count = install(Path(folder))
        _import_kernels()
        os.environ["TRITON_INTERPRET"] = "1"
        _compile_ngram_gpu()
        found = measured(LLM(disable_log_stats=False, **task["arguments"]), count, **task["steps"])
        print(json.dumps(found), flush=True)
        os._exit(0)  # the engine would take seconds to end


def _import_kernels() -> None:
    """Define specplug's kernels while the interpreter is off, and let the adapter launch them on the CPU."""
    from specplug.steps.device_steps import Launches
    from specplug.steps.kernels import launches as kernels
    from specplug_vllm.worker import stage_steps

    by_kernels()
    stage_steps.launches_for = lambda device: Launches(kernels.begin, kernels.finish)


def _compile_ngram_gpu() -> None:
    """Let the kernels of `ngram_gpu` be compiled with their drafter: what is interpreted later changes the language."""
    from triton.runtime.jit import JITFunction
    from vllm.v1.worker.gpu.spec_decode.ngram import speculator

    drafter = speculator.NgramGPUSpeculator
    initialise = drafter.__init__

    def initialise_and_compile(self: Any, *args: Any) -> None:
        initialise(self, *args)
        for name in NGRAM_GPU:
            setattr(speculator, name, JITFunction(getattr(speculator, name).fn))
        ints = torch.zeros(8, dtype=torch.int32)
        with _compiled_functions():
            for dtype in (torch.int32, torch.int64):
                batch = SimpleNamespace(num_reqs=1, idx_mapping=torch.zeros(8, dtype=dtype))
                newest = self.req_states.last_sampled_tokens
                self.propose(batch, None, None, None, None, ints, ints, newest, None, None, None)

    drafter.__init__ = initialise_and_compile


@contextmanager
def _compiled_functions() -> Iterator[None]:
    """Let the functions that Triton defines as kernels be compiled in this context."""
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    changed = []
    for module in (triton.language, triton.language.standard):
        for name, value in list(vars(module).items()):
            if isinstance(value, InterpretedFunction):
                changed.append((module, name, value))
                setattr(module, name, JITFunction(value.fn))
    yield
    for module, name, value in changed:
        setattr(module, name, value)


def measured(llm: Any, count: Callable[[], int], batch: int, steps: int, functions: bool) -> dict[str, Any]:
    """Return, by step, the microseconds of each part and the drafts planned; launches per step; and what ran."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    from tests.engines.vllm import inside

    engine, scheduler = llm.llm_engine, inside.scheduler(llm)
    meter = Meter("outside", (VLLM, *PARTS, KERNELS, MODEL), time.thread_time_ns)
    interpreted = _install(meter, engine.engine_core.engine_core, scheduler, inside.runner(llm))
    ids = llm.get_tokenizer().encode("def f(x):\n    return x + 1\n\n" * 12)[:160]
    params = SamplingParams(temperature=1.5, ignore_eos=True, max_tokens=1800)
    for row in range(batch):
        engine.add_request(f"{row}", TokensPrompt(prompt_token_ids=ids[row % 7 :]), params)
    for _ in range(WARM_UP):
        engine.step()
    rows = []
    before = count()
    interpreted.clear()
    for _ in range(steps):
        meter.clear()
        engine.step()
        meter.switch(meter.part)
        row = {part: meter.nanoseconds[part] / 1e3 for part in (VLLM, *PARTS, MODEL)}
        row["drafts"] = sum(len(request.spec_token_ids) for request in scheduler.running) / batch
        rows.append(row)
    launches = (count() - before + sum(interpreted[part] for part in PARTS)) / steps
    found = {"rows": rows, "launches": launches}
    if functions:
        found["functions"] = [_functions(engine.step) for _ in range(PROFILED)]
    if len(scheduler.running) < batch:
        raise ValueError(f"requests ended within {steps} steps; ask for fewer --steps")
    return found


def _install(meter: Meter, core: Any, scheduler: Any, runner: Any) -> Counter[str]:
    """Attribute time to parts; return the count of interpreted launches by part, which the caller may clear."""
    from triton.runtime.interpreter import GridExecutor

    kind, model, drafter = type(runner), runner.model, runner.speculator
    call = GridExecutor.__call__
    launched = Counter[str]()

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched[meter.part] += 1
        return metered(self, *args, **kwargs)

    def valid(*args: Any, **kwargs: Any) -> torch.Tensor:
        return clear(propose(*args, **kwargs))

    metered = meter.wrapped(call, KERNELS)
    clear = meter.wrapped(torch.Tensor.zero_, KERNELS)  # vLLM writes -1 after each draft, which kernels overwrite
    propose = meter.wrapped(drafter.propose, PROPOSER)
    GridExecutor.__call__ = counted
    core.step_fn = meter.wrapped(core.step_fn, VLLM)
    model.forward = meter.wrapped(model.forward, MODEL)
    model.compute_logits = meter.wrapped(model.compute_logits, MODEL)
    drafter.propose = valid
    wrap_scheduler(meter, type(scheduler))
    for name in ("execute_model", "sample_tokens"):
        if "original" in getattr(kind, name).__code__.co_freevars:
            wrap_hook(meter, kind, name)
    return launched


def _functions(step: Callable[[], Any]) -> list[int]:
    """Return the functions and files of specplug that run in a step, and how many calls these are."""
    calls = Counter[tuple[str, str]]()

    def seen(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN):
            calls[code.co_filename, code.co_qualname] += 1

    sys.setprofile(seen)
    try:
        step()
    finally:
        sys.setprofile(None)
    return [len(calls), len({file for file, _ in calls}), calls.total()]


if __name__ == "__main__":
    main()
