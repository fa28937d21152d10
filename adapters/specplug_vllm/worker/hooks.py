"""Hooks on vLLM's runners and workers: requests, what V2's outputs report, memory for proposers, and engine events.

Requests are removed before the engine's step runs, as vLLM frees their slots then, and added after it, when vLLM has
assigned slots.  V2's warm-up sends dummy requests through the same method; the hook ignores these.

Events are new weights, sleep, wake-up and shutdown; the scheduler reports a flushed prefix cache with the next step
(see `scheduler`).  All of them arrive between two steps, because a worker runs such calls and its steps one after the
other.  Weights change through ``reload_weights``; through a weight transfer, which ends with ``finish_weight_update``;
through ``reset_weights``, which zeroes them; and through third-party code, such as a training framework's worker
extension, that calls the model's own ``load_weights``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from specplug.seams.seam import hook
from specplug.steps.draft_report import NO_DRAFTS
from specplug.steps.memory import free_bytes
from specplug_vllm import seams, step_metadata
from specplug_vllm.startup.engine_config import SCHEDULERS
from specplug_vllm.worker.drafting import Drafting

Method = Callable[..., Any]

_EXTERNAL = object()
"""Stands for the `drafting` of drafters that are not specplug's."""


def execute_model(original: Method, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook on `execute_model` of both runners.  Runners without specplug pass through."""
    if kwargs.get("dummy_run"):
        return original(runner, scheduler_output, *args, **kwargs)
    drafter = _drafter(runner)
    drafting = getattr(drafter, "drafting", _EXTERNAL)
    if drafting is not _EXTERNAL:  # specplug's, also on ranks that do not draft
        drafter.before_step(runner, scheduler_output)
    if not isinstance(drafting, Drafting) or drafter.is_warmup:
        result = original(runner, scheduler_output, *args, **kwargs)
    else:
        drafting.end_requests(scheduler_output, drafter.text_of)
        result = original(runner, scheduler_output, *args, **kwargs)
        drafting.begin_step(scheduler_output)
    manager: Any = getattr(runner, "adaptive_verification", None)
    if hasattr(manager, "plan"):  # a `BudgetManager`: on all ranks, so that all of them run batches of the same shape
        manager.plan = step_metadata.of(scheduler_output).plan
    return result


def sample_tokens(original: Method, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook on `sample_tokens` of V2's runner: its outputs bring what only the worker knows of a step."""
    output = original(runner, *args, **kwargs)
    drafts = getattr(_drafter(runner), "verified_report", None)
    manager: Any = getattr(runner, "adaptive_verification", None)
    verified, profiled = manager.take_counts() if hasattr(manager, "take_counts") else (None, ())
    if output is not None and (drafts is not None or verified is not None):
        report = step_metadata.WorkerReport(drafts or NO_DRAFTS, verified, profiled)
        step_metadata.attach(getattr(output, "model_runner_output", output), report)
    return output


def is_warmup(runner: Any, scheduler_output: Any) -> bool:
    """Return whether the step is a warm-up: specplug's scheduler is in use and did not mark the step as its own."""
    if step_metadata.of(scheduler_output) is not step_metadata.NO_METADATA:
        return False
    return runner.vllm_config.scheduler_config.scheduler_cls in SCHEDULERS


def find_drafting(runner: Any) -> Drafting | None:
    """Return the `Drafting` of a V1 or V2 runner, or None."""
    drafting = getattr(_drafter(runner), "drafting", None)
    return drafting if isinstance(drafting, Drafting) else None


def _drafter(runner: Any) -> Any:
    """Return specplug's drafter or, without one, vLLM's own."""
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    return getattr(drafter, "specplug", drafter)


def reserve_memory(drafting: Drafting) -> None:
    """Hook the worker classes of this process, once, if any proposer declares later allocations.

    On a GPU vLLM profiles the model and gives the rest of its memory share to the KV cache, so memory that a proposer
    allocates when it is built is already counted.  The hook subtracts what proposers declare to allocate later.
    """
    if not drafting.stage.bytes_to_allocate:
        return
    from vllm.v1.worker.gpu_worker import Worker

    for worker_class in (Worker, *type.__subclasses__(Worker)):  # the CPU worker is a subclass
        hook(worker_class, "determine_available_memory", _available_memory)


def _available_memory(original: Method, worker: Any) -> int:
    available: int = original(worker)
    drafting = find_drafting(worker.model_runner)
    if drafting is None or drafting.device.type != worker.model_runner.device.type:  # V1 drafts on the CPU
        return available
    if worker.cache_config.kv_cache_memory_bytes is None:
        return drafting.stage.leave_room(available)
    free = free_bytes(drafting.device)  # the operator sets the cache's size, and vLLM has not allocated it yet
    if free is not None:
        drafting.stage.leave_room(free - available)
    return available


def install_events(runner: Any, drafting: Drafting) -> None:
    """Hook a runner, its model and its worker.  Call it once per runner, at its first step.

    Earlier events belong to start-up, when no proposer has learnt anything.
    """
    if not seams.available("events"):
        return
    for owner, name in ((runner, "reload_weights"), (runner.get_model(), "load_weights")):
        if hasattr(owner, name):
            setattr(owner, name, _changing(getattr(owner, name), drafting))
    _hook_workers()


def _changing(original: Method, drafting: Drafting) -> Method:
    """Wrap a change of weights, after which proposers are notified once, although a reload nests a load.

    They are notified of a change that fails, too, since some of the weights may be new.
    """

    @functools.wraps(original)
    def change(*args: Any, **kwargs: Any) -> Any:
        drafting.changes_of_weights += 1
        try:
            return original(*args, **kwargs)
        finally:
            drafting.changes_of_weights -= 1
            if not drafting.changes_of_weights:
                drafting.on_engine_event("weights changed")

    return change


def _hook_workers() -> None:
    """Hook this process's worker classes, once.  At the first step they include the worker's own class."""
    from vllm.v1.worker.worker_base import WorkerBase

    for cls in _family(WorkerBase):
        for name, around in _EVENTS.items():
            if name in cls.__dict__:
                hook(cls, name, around)


def _family(base: Any) -> Iterator[Any]:
    yield base
    for cls in base.__subclasses__():
        yield from _family(cls)


def _changes_weights(original: Method, worker: Any, *args: Any, **kwargs: Any) -> Any:
    drafting = find_drafting(worker.model_runner)
    change = original if drafting is None else _changing(original, drafting)
    return change(worker, *args, **kwargs)


def _finishes_update(original: Method, worker: Any, *args: Any, **kwargs: Any) -> Any:
    """A transfer to vLLM's own draft model does not change the target's weights."""
    if getattr(worker, "_weight_update_is_draft", False):
        return original(worker, *args, **kwargs)
    return _changes_weights(original, worker, *args, **kwargs)


_MEMORY = frozenset(("weights", "kv_cache"))  # memory that vLLM releases to sleep, and restores in parts or at once


def _sleeps(original: Method, worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Proposers are notified first, while the device's memory is still intact."""
    drafting = find_drafting(worker.model_runner)
    if drafting is not None:
        if not drafting.released:  # hooks of base classes run within those of their subclasses
            drafting.on_engine_event("sleep")
        drafting.released |= _MEMORY
    return original(worker, *args, **kwargs)


def _wakes(original: Method, worker: Any, tags: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Memory may come back in parts: proposers are notified once all of it is back."""
    result = original(worker, tags, *args, **kwargs)
    drafting = find_drafting(worker.model_runner)
    if drafting is not None and drafting.released:
        drafting.released -= frozenset(tags or _MEMORY)
        if not drafting.released:
            drafting.on_engine_event("wake")
    return result


def _shuts_down(original: Method, worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Drafting closes first and flushes its trace."""
    drafting = find_drafting(getattr(worker, "model_runner", None))
    if drafting is not None:
        drafting.close()
    return original(worker, *args, **kwargs)


_EVENTS: dict[str, Method] = {
    "finish_weight_update": _finishes_update,
    "reset_weights": _changes_weights,
    "shutdown": _shuts_down,
    "sleep": _sleeps,
    "wake_up": _wakes,
}
