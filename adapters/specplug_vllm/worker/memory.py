"""Hook on the workers' `determine_available_memory` that reserves memory for proposers.

On a GPU vLLM profiles the model and gives the rest of its memory share to the KV cache, so memory that a proposer
allocates when it is built is already counted.  This hook subtracts what proposers declare to allocate later.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug.pipeline.memory import free_bytes
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.lifecycle import drafting_of


def install(drafting: Drafting) -> None:
    """Hook the worker classes of this process, once, if any proposer declares later allocations."""
    if not drafting.stage.bytes_to_allocate:
        return
    from vllm.v1.worker.gpu_worker import Worker

    for worker_class in (Worker, *type.__subclasses__(Worker)):  # the CPU worker is a subclass
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
        free = free_bytes(drafting.device)  # the operator sets the cache's size, and vLLM has not allocated it yet
        if free is not None:
            drafting.stage.leave_room(free - available)
        return available

    determine_available_memory._specplug = True  # type: ignore[attr-defined]
    worker_class.determine_available_memory = determine_available_memory
