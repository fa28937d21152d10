"""The host of vLLM; see `tests.engines.host`."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from tests.engines.host import main

MODULES = ("vllm", "vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")


def answer_for_llvmlite() -> None:
    """Let vLLM look through all modules for its kernels on a CPU, in a process that has imported numba.

    vLLM 0.32 reads the `vars` of every object, and llvmlite's handle of its library answers with a function of that
    name.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab["__dict__"] = {}


def fork_processes() -> None:
    """Let vLLM fork the processes of its engines and ranks; on CPUs it spawns them, and they import it again."""
    from vllm.v1.engine import coordinator, utils
    from vllm.v1.executor import multiproc_executor

    for module in (coordinator, utils, multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")


def inspect_models_here() -> None:
    """Let vLLM look at a model's class in this process; it starts another one, which imports vLLM, once for each."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()


def build(arguments: dict[str, Any]) -> Any:
    """Return an `LLM`, nothing without arguments, or be the server that a command starts."""
    answer_for_llvmlite()  # numba is imported before the engine starts
    fork_processes()
    inspect_models_here()
    if "command" in arguments:
        from vllm.entrypoints.cli.main import main as serve

        sys.argv = arguments["command"]
        return serve()
    if not arguments:
        return None
    from vllm import LLM

    return LLM(disable_log_stats=False, **arguments)


if __name__ == "__main__":
    main(MODULES, build)
