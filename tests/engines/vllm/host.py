"""The host of vLLM; see `tests.engines.host`."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

from tests.engines.host import main

MODULES = ("vllm", "vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")


def register_kernels(register: Callable[[], None]) -> Callable[[], None]:
    """Let vLLM look for its kernels in all modules but one.

    It asks every object for its attributes, and llvmlite's handle of its library, which the nursery has imported with
    numba, answers with a function of that name.  An engine that starts anew imports it later.
    """

    def registering() -> None:
        hidden = sys.modules.pop("llvmlite.binding.ffi")
        try:
            register()
        finally:
            sys.modules["llvmlite.binding.ffi"] = hidden

    return registering


def build(arguments: dict[str, Any]) -> Any:
    """Return an `LLM`, or be the server that a command starts."""
    from vllm.platforms import current_platform

    current_platform.register_triton_kernel_overrides = register_kernels(
        current_platform.register_triton_kernel_overrides
    )
    if "command" in arguments:
        import vllm.v1.engine.utils as module
        from vllm.entrypoints.cli.main import main as serve

        module.get_mp_context = lambda: multiprocessing.get_context("fork")  # on CPUs vLLM spawns the engine's process
        sys.argv = arguments["command"]
        return serve()
    from vllm import LLM

    return LLM(disable_log_stats=False, **arguments)


if __name__ == "__main__":
    main(MODULES, build)
