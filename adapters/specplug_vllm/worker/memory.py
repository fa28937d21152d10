"""Room that vLLM leaves for what proposers take after start-up, in its workers' `determine_available_memory`.

On a GPU vLLM gives to its cache what its share of the memory holds beside all that is allocated once the model has been
profiled, so that what a proposer allocates when it is built is counted.  What it has declared beyond that is taken off
here.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug.pipeline.memory import free_bytes
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.lifecycle import drafting_of


def install(drafting: Drafting) -> None:
    """Hook the worker classes of this process, once; not where nothing has been declared."""
    if not drafting.stage.bytes_to_allocate:
        return
    from vllm.v1.worker.gpu_worker import Worker

    for worker_class in (Worker, *type.__subclasses__(Worker)):  # that of CPUs is one of them
        hook(worker_class)


def hook(worker_class: Any) -> None:
    """Hook one worker class."""
    original = worker_class.determine_available_memory
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def determine_available_memory(self: Any) -> int:
        available: int = original(self)
        drafting = drafting_of(self.model_runner)
        if drafting is None or drafting.device.type != self.model_runner.device.type:  # V1 drafts on the CPU
            return available
        if self.cache_config.kv_cache_memory_bytes is None:
            return drafting.stage.leave_room(available)
        free = free_bytes(drafting.device)  # the operator says how large the cache is, and vLLM has not allocated it
        if free is not None:
            drafting.stage.leave_room(free - available)
        return available

    determine_available_memory._specplug = True  # type: ignore[attr-defined]
    worker_class.determine_available_memory = determine_available_memory
