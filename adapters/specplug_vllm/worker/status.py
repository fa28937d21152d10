"""What a running server says about itself, and how its other processes are asked.

`specplug_status` is a method of workers, reached by ``collective_rpc``; `specplug_status` and `specplug_control` are
methods of engine cores, reached by vLLM's utility calls.  Both exist only where specplug runs.  Answers are plain data:
dicts, lists, strings and numbers, which every transport of vLLM takes.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from specplug.operator.status import by_plugin, reported_details, reported_settings
from specplug_vllm import seams
from specplug_vllm.config import engine_caps, runner_of
from specplug_vllm.worker.lifecycle import drafting_of


def install_worker() -> None:
    """Give this process's worker class the method `specplug_status`."""
    from vllm.v1.worker.worker_base import WorkerBase

    WorkerBase.specplug_status = worker_status


def install_engine_core() -> None:
    """Give this process's engine core the methods `specplug_status` and `specplug_control`."""
    if not seams.available("status"):
        return
    from vllm.v1.engine.core import EngineCore

    EngineCore.specplug_status = engine_status
    EngineCore.specplug_control = control


def worker_status(worker: Any) -> dict[str, Any]:
    """Return what a worker does: its rank, and where it drafts (rank 0 does) its proposers, counts and faults.

    Counts are read back from the device, which on a GPU waits for the steps that are queued.
    """
    drafting = drafting_of(worker.model_runner)
    status: dict[str, Any] = {"rank": worker.rank, "drafts": drafting is not None}
    if drafting is not None:
        settings = drafting.resolved.settings
        status |= {
            "device": str(drafting.device),
            "proposers": [settings.proposer, *settings.extra_proposers],
            "distribution_bytes": drafting.distribution_bytes,
            "sources": list(drafting.stage.sources),
            "details": reported_details(drafting.stage.proposers),
            "metrics": drafting.stage.metrics.snapshot().as_dict(),
        }
    return status


def engine_status(core: Any) -> dict[str, Any]:
    """Return what an engine does: its settings, its scheduler's and all its workers' figures."""
    config, step_planner = core.vllm_config, core.scheduler.step_planner
    caps = engine_caps(config)
    return {
        "engine": config.parallel_config.data_parallel_index,
        "runner": runner_of(config),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "max_draft_length": caps.max_draft_length,
        "captured_draft_lengths": list(caps.captured_draft_lengths),
        "settings": reported_settings(step_planner.resolved),
        "scheduler": {
            "steps": step_planner.steps,
            "plan": {"draft_length": step_planner.plan.draft_length, "token_budget": step_planner.plan.token_budget},
            "control": step_planner.control.state(),
            "faults": by_plugin(step_planner.faults),
        },
        "workers": core.model_executor.collective_rpc(worker_status),
    }


def control(core: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an operator's order (see `specplug.operator.control.Order`); return what holds now."""
    state: dict[str, Any] = core.scheduler.step_planner.control.set(**order)
    return state


async def ask_engines(client: Any, method: str, *args: Any) -> list[Any]:
    """Call a method of every engine core that an `AsyncMPClient` talks to; return their answers in order.

    With data parallelism vLLM's own calls reach every engine too, but return the first one's answer only.
    """
    calls = [client._call_utility_async(method, *args, engine=engine) for engine in client.core_engines]
    return list(await asyncio.gather(*calls))


def versions() -> dict[str, str]:
    """Return the versions of what runs."""
    import vllm

    return {"specplug": version("specplug"), "vllm": str(vllm.__version__)}
