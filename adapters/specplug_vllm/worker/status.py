"""Status and control of a running server, and the calls that reach its engine cores and workers.

`specplug_status` is a method of workers, called through ``collective_rpc``; `specplug_status` and `specplug_control`
are methods of engine cores, called through vLLM's utility calls.  They exist only if specplug is enabled.  Results are
dicts, lists, strings and numbers, which every transport of vLLM can carry.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from specplug.operator import status as common
from specplug.seams.seam import hook
from specplug_vllm import seams
from specplug_vllm.config import drafter_of, engine_caps, lossy_method, runner_of, use_of
from specplug_vllm.worker.hooks import find_drafting


def install_worker() -> None:
    """Add the method `specplug_status` to vLLM's worker base class."""
    from vllm.v1.worker.worker_base import WorkerBase

    WorkerBase.specplug_status = worker_status


def install_engine_core() -> None:
    """Add the methods `specplug_status` and `specplug_control` to vLLM's engine core class."""
    if not seams.available("status"):
        return
    from vllm.v1.engine.core import EngineCore

    EngineCore.specplug_status = engine_status
    EngineCore.specplug_control = control


def export_metrics() -> None:
    """Export the metrics of engines that this process starts or connects to on vLLM's /metrics.

    Called if specplug is enabled; see `specplug.operator.exporter`.
    """
    if not seams.available("metrics"):
        return
    from vllm.v1.engine.core_client import EngineCoreClient

    hook(EngineCoreClient, "make_async_mp_client", _watched)


def _watched(original: Callable[..., Any], vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    client = original(vllm_config, *args, **kwargs)
    if use_of(vllm_config):
        from specplug.operator.exporter import exporter

        exporter().watch(functools.partial(ask_engines, client, "specplug_status"))
    return client


def worker_status(worker: Any) -> dict[str, Any]:
    """Return a worker's status: its rank, whether it drafts and, on rank 0, its proposers, counts and faults.

    Counts are read back from the device; on a GPU this waits for the queued steps.
    """
    drafting = find_drafting(worker.model_runner)
    status: dict[str, Any] = {"rank": worker.rank, "drafts": drafting is not None}
    if drafting is not None and drafting.rank == 0:  # the counts of others are the same
        stage = drafting.stage
        what = drafting.resolved.settings, drafting.device, drafting.allocator, stage, stage.metrics.snapshot()
        status |= common.worker_status(*what)
        status["distribution_bytes"] = drafting.distribution_bytes
    return status


def engine_status(core: Any) -> dict[str, Any]:
    """Return an engine's status: settings, scheduler state and the status of each worker.

    With vLLM's own drafter the scheduler counts the results of drafts, and no worker has a status.
    """
    config = core.vllm_config
    scheduler = core.scheduler
    counts = scheduler.counts
    drafter = {}
    if counts is not None:
        drafter = {"engine_drafter": drafter_of(config), "metrics": counts.snapshot({}).as_dict()}
    return {
        "engine": config.parallel_config.data_parallel_index,
        "runner": runner_of(config),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        **common.engine_status(
            engine_caps(config), scheduler.step_planner, scheduler.start_costs, lossy_method(config), drafter
        ),
        "workers": [] if drafter else core.model_executor.collective_rpc(worker_status),
    }


def control(core: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Apply an operator's order (see `specplug.operator.control.Order`) and return the resulting state."""
    state: dict[str, Any] = core.scheduler.step_planner.control.set(**order)
    return state


async def ask_engines(client: Any, method: str, *args: Any) -> list[Any]:
    """Call a method of every engine core of an `AsyncMPClient` and return the results in order.

    With data parallelism vLLM's own calls reach every engine too, but return only the first one's result.
    """
    calls = [client._call_utility_async(method, *args, engine=engine) for engine in client.core_engines]
    return list(await asyncio.gather(*calls))
