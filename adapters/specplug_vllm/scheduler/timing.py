"""Steps of vLLM's engine that are timed before its first request, for what they cost.

`specplug_vllm.scheduler.timed` runs them.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import torch

from specplug.cost.measuring import StepLimits
from specplug.cost.store import PROFILED, UNKNOWN, StartCosts, costs_at_start
from specplug.seams.seam import hook
from specplug_vllm import seams
from specplug_vllm.config import cuts_on_device, engine_caps, has_lockstep_ranks, require_settings, runner_of, use_of

logger = logging.getLogger("specplug")


def install() -> None:
    """Time steps at the end of each engine core's start, or before its first step where a process loads plug-ins late.

    A process that is spawned loads them within the constructor of its core.
    """
    if not seams.available("timing"):
        return
    from vllm.v1.engine.core import EngineCore, EngineCoreProc

    hook(EngineCore, "__init__", _built)
    hook(EngineCoreProc, "run_busy_loop", _runs)


def _built(original: Any, core: Any, *args: Any, **kwargs: Any) -> None:
    original(core, *args, **kwargs)
    time_steps(core)


def _runs(original: Any, core: Any, *args: Any, **kwargs: Any) -> Any:
    time_steps(core)
    return original(core, *args, **kwargs)


def time_steps(core: Any) -> None:
    """Let the planner of an engine core know what steps cost, once; see `specplug.settings.model.CostSettings`."""
    scheduler = core.scheduler
    config = core.vllm_config
    if getattr(scheduler, "start_costs", None) is not UNKNOWN:
        return
    settings = require_settings(config).settings.costs
    planner = scheduler.step_planner
    scheduler.start_costs = StartCosts(basis=PROFILED) if cuts_on_device(config) else StartCosts()
    if not settings.measure or not planner.reads_costs or not _can_time(config):
        return
    from specplug_vllm.scheduler.timed import measure_steps  # imports vLLM's schedulers

    try:
        costs = costs_at_start(key_of(config), lambda: measure_steps(core, _limits(config), settings.seconds))
    except Exception:  # no server may stop for want of these costs
        logger.exception("steps are not timed at start, so their costs are learnt while serving")
        return
    scheduler.start_costs = costs
    if costs.costs:
        planner.stage.calibrate(costs.costs)


def _can_time(config: Any) -> bool:
    """Return whether steps without clients' requests can be run, and be hidden from everything outside of the engine.

    Ranks that step together would have to time together, as would those that an external launcher starts, each of which
    has an engine core of its own; connectors and event publishers would see the requests.  Where lookup continues
    another drafter's drafts, no drafts are long enough while specplug drafts nothing.
    """
    publishes = config.kv_events_config is not None and config.kv_events_config.enable_kv_cache_events
    connects = config.kv_transfer_config is not None or config.ec_transfer_config is not None
    return not (
        publishes
        or connects
        or cuts_on_device(config)
        or has_lockstep_ranks(config)
        or config.parallel_config.distributed_executor_backend == "external_launcher"
        or use_of(config) == "hybrid"
        or config.model_config.is_encoder_decoder
    )


def key_of(config: Any) -> dict[str, object]:
    """Return everything that the costs of a server's steps depend on."""
    model = config.model_config
    cache = config.cache_config
    parallel = config.parallel_config
    compilation = config.compilation_config
    settings = require_settings(config).settings
    device = config.device_config.device_type
    on_gpu = device == "cuda"
    return {
        "engine": f"vllm {seams.installed_version()} {runner_of(config)}",
        "torch": torch.__version__,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "model": [model.model, model.revision, str(model.dtype), model.quantization, model.max_model_len],
        "device": torch.cuda.get_device_name() if on_gpu else device,
        "host": socket.gethostname(),
        "threads": None if on_gpu else [os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()],
        "affinity": None if on_gpu else sorted(os.sched_getaffinity(0)),
        "ranks": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size],
        "experts": parallel.enable_expert_parallel,
        "adapters": config.lora_config is not None,
        "attention": str(config.attention_config.backend),
        "graphs": [str(compilation.cudagraph_mode), compilation.cudagraph_capture_sizes, model.enforce_eager],
        "cache": [str(cache.cache_dtype), cache.block_size],
        "requests": config.scheduler_config.max_num_seqs,
        "batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "drafter": [config.speculative_config.method, config.speculative_config.model, settings.proposer],
        "draft_lengths": [settings.num_speculative_tokens, *engine_caps(config).captured_draft_lengths],
        "seconds": settings.costs.seconds,
    }


def _limits(config: Any) -> StepLimits:
    scheduling = config.scheduler_config
    caps = engine_caps(config)
    spec = config.speculative_config
    batched = scheduling.max_num_batched_tokens
    requests = scheduling.max_num_seqs
    pads = runner_of(config) == "v2"
    lengths = caps.captured_draft_lengths if pads else ()
    return StepLimits(
        requests=requests,
        tokens=min(scheduling.max_num_scheduled_tokens or batched, batched - spec.max_num_new_slots_for_drafting),
        draft_lengths=sorted({0, *(lengths or range(caps.max_draft_length + 1))}),
        pads=pads,
        graph_sizes=tuple(sorted(config.compilation_config.cudagraph_capture_sizes or ())),
    )
