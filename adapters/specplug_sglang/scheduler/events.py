"""Hooks in SGLang's scheduler process: its choice of a worker, and events that it does not report to one.

The events are the scheduler itself, idle times, new weights and released memory.  All of them arrive between two steps,
since SGLang runs such calls and steps one after the other.  SGLang itself reports a flushed cache to the worker
(`SpeculativeWorker.clear_cache_pool`).

SGLang's `WeightUpdater` changes weights on the target's runner: from disk, from tensors, from other processes.  A
client that writes weights from outside, by RDMA, signals it by an update that ends without a load in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specplug_sglang import seams
from specplug_sglang.config import engine_method, extended_method

if TYPE_CHECKING:
    from specplug.types.request import EngineEventKind
    from specplug_sglang.scheduler.drafting import ProposerDrafting

CHOICE = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"

_runners: weakref.WeakKeyDictionary[Any, ProposerDrafting] = weakref.WeakKeyDictionary()
"""The `ProposerDrafting` of each target runner."""


def install() -> None:
    """Register the hooks, once per process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register = HookRegistry.register
    register(CHOICE, chosen, HookType.AFTER)
    register(f"{SCHEDULER}.maybe_init_draft_worker", _attach, HookType.AFTER)
    register(f"{SCHEDULER}.on_idle", _idle, HookType.BEFORE)
    for name in ("update_weights_from_disk", "update_weights_from_tensor", "update_weights_from_ipc"):
        register(f"{UPDATER}.{name}", _change, HookType.AROUND)
    register(f"{UPDATER}.load_weights_from_distributed", _change, HookType.AROUND)
    register(f"{UPDATER}.end_weight_update", _end_update, HookType.AROUND)
    register(f"{MANAGER}.release_memory_occupation", _release, HookType.BEFORE)
    register(f"{MANAGER}.resume_memory_occupation", _resume, HookType.AFTER)


def drafting_of(owner: Any) -> ProposerDrafting | None:
    """Return the `ProposerDrafting` of a scheduler or another owner of a `draft_worker`; None without specplug."""
    drafting = getattr(getattr(owner, "draft_worker", None), "drafting", None)
    if drafting is None:
        return None
    from specplug_sglang.scheduler.drafting import ProposerDrafting

    return drafting if isinstance(drafting, ProposerDrafting) else None


def _attach(_: Any, scheduler: Any) -> None:
    """Give a worker with proposers its scheduler, and let it be found by its runner."""
    drafting = drafting_of(scheduler)
    if drafting is not None:
        drafting.attach(scheduler)
        _runners[scheduler.draft_worker.model_runner] = drafting


def _notify(owner: Any, kind: EngineEventKind | None) -> None:
    """Notify the proposers of `owner`, if it has any and the seams of events have not moved; None is no event."""
    drafting = drafting_of(owner)
    if drafting is None or not seams.available("events"):
        return
    if kind is None:
        drafting.sweep()
    else:
        drafting.on_engine_event(kind)


def _idle(scheduler: Any) -> None:
    """Notify proposers of the last request's end when the engine idles, not when the next request arrives."""
    _notify(scheduler, None)


def _change(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Report new weights, also if the change fails, since some of the weights may be new."""
    try:
        return original(updater, *args, **kwargs)
    finally:
        _notify_change(updater)


def _end_update(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Report new weights of an update without a load; `_change` has reported the loads of any other update."""
    result = original(updater, *args, **kwargs)
    if kwargs.get("run_post_load"):
        _notify_change(updater)
    return result


def _notify_change(updater: Any) -> None:
    drafting = _runners.get(updater.get_model_runner()) if _runners and seams.available("events") else None
    if drafting is not None:
        drafting.on_engine_event("weights changed")


def _release(manager: Any, *_: Any) -> None:
    """Notify proposers before the memory is released, while its contents are intact."""
    if not manager.offload_tags:
        _notify(manager, "sleep")


def _resume(_: Any, manager: Any, *__: Any) -> None:
    """Notify proposers once all memory is back; it may come back in parts."""
    if not manager.offload_tags:
        _notify(manager, "wake")


def chosen(worker: Any, algorithm: Any, server_args: Any) -> Any:
    """Return the class of the worker, given the one that SGLang chose; other servers are unchanged."""
    if extended_method(server_args) is not None:
        from specplug_sglang.scheduler.extending import extended

        return extended(worker)
    if engine_method(server_args) is None:
        return worker
    from specplug_sglang.scheduler.engine_drafting import planned

    return planned(worker)
