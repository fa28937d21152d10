"""The host of vLLM; see `tests.engines.host`."""

from __future__ import annotations

from typing import Any

from tests.engines.host import main

MODULES = ("vllm", "vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")


def build(arguments: dict[str, Any]) -> Any:
    """Return an `LLM`."""
    from vllm import LLM

    return LLM(disable_log_stats=False, **arguments)


if __name__ == "__main__":
    main(MODULES, build)
