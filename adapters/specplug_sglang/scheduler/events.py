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
from specplug_sglang.config import use_of

if TYPE_CHECKING:
    from specplug.types.request import EngineEventKind
    from specplug_sglang.scheduler.drafting import Drafting

_runners: weakref.WeakKeyDictionary[Any, Drafting] = weakref.WeakKeyDictionary()
"""The `Drafting` of each target runner."""


def drafting_of(owner: Any) -> Drafting | None:
    """Return the `Drafting` of a scheduler or another owner of a `draft_worker`; None without specplug."""
    return getattr(getattr(owner, "draft_worker", None), "drafting", None)


def attach_worker(_: Any, scheduler: Any) -> None:
    """Give a worker with proposers its scheduler, and let it be found by its runner."""
    drafting = drafting_of(scheduler)
    if drafting is not None:
        drafting.attach(scheduler)
        _runners[scheduler.draft_worker.model_runner] = drafting


def notify(owner: Any, kind: EngineEventKind | None = None) -> None:
    """Notify the proposers of `owner`, if it has any and the seams of events have not moved, of an event.

    None is no event: at an idle engine they learn of the last request's end, not when the next request arrives.
    """
    drafting = drafting_of(owner)
    if drafting is None or not seams.available("events"):
        return
    if kind is None:
        drafting.sweep()
    else:
        drafting.on_engine_event(kind)


def change_weights(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Report new weights, also if the change fails, since some of the weights may be new."""
    try:
        return original(updater, *args, **kwargs)
    finally:
        _notify_change(updater)


def end_update(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Report new weights of an update without a load; `change_weights` has reported the loads of any other update."""
    result = original(updater, *args, **kwargs)
    if kwargs.get("run_post_load"):
        _notify_change(updater)
    return result


def _notify_change(updater: Any) -> None:
    drafting = _runners.get(updater.get_model_runner()) if _runners and seams.available("events") else None
    if drafting is not None:
        drafting.on_engine_event("weights changed")


def notify_release(manager: Any, *_: Any) -> None:
    """Notify proposers before the memory is released, while its contents are intact."""
    if not manager.offload_tags:
        notify(manager, "sleep")


def notify_resume(_: Any, manager: Any, *__: Any) -> None:
    """Notify proposers once all memory is back; it may come back in parts."""
    if not manager.offload_tags:
        notify(manager, "wake")


def choose_worker(worker: Any, algorithm: Any, server_args: Any) -> Any:
    """Return the class of the worker, given the one that SGLang chose; other servers are unchanged."""
    use = use_of(server_args)
    if use == "hybrid":
        from specplug_sglang.scheduler.extending import extended

        return extended(worker)
    if use == "engine":
        from specplug_sglang.scheduler.engine_workers import planned

        return planned(worker)
    return worker
