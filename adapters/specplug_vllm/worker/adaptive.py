"""Hooks of the V2 runner's adaptive verification: they replace vLLM's manager by specplug's `BudgetManager`.

They run in worker processes; `specplug_vllm.startup.engine_config` explains their purpose, and which checks are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specplug.errors import EngineError
from specplug.seams.hook import hook
from specplug_vllm import seams, step_metadata
from specplug_vllm.config import is_requested
from specplug_vllm.startup.engine_config import ADAPTIVE, has_any_graphs


def install_manager() -> None:
    """Patch the V2 runner's module, which the caller has already imported, to build `BudgetManager`."""
    from vllm.v1.worker.gpu import model_runner

    seams.require("adaptive")
    hook(model_runner, "maybe_create_adaptive_verification_manager", _our_manager)
    hook(model_runner, "resolve_adaptive_cudagraph_mode", _our_graph_mode)


def set_plan(runner: Any, scheduler_output: Any) -> None:
    """Hand the plan of the step, which limits the draft tokens of the next batch, to a runner's manager.

    Every rank gets the same plan, so that all of them run batches of the same shape.
    """
    manager = getattr(runner, "adaptive_verification", None)
    if manager is not None and hasattr(manager, "plan"):
        manager.plan = step_metadata.of(scheduler_output).plan


def report(runner: Any, output: Any) -> None:
    """Attach what a runner's manager knows of a step to the runner's output."""
    manager: Any = getattr(runner, "adaptive_verification", None)
    if not hasattr(manager, "admitted"):
        return
    step_metadata.set_verified_count(output, manager.admitted)
    manager.admitted = 0  # of the next step, if that has no drafts
    if manager.profiled:  # with the first output; on several ranks that of rank 0 reaches the scheduler
        step_metadata.state_profiled(output, manager.profiled)
        manager.profiled = ()


def _our_manager(original: Callable[..., Any], **found: Any) -> Any:
    vllm_config = found["vllm_config"]
    if not found[ADAPTIVE] or not is_requested(vllm_config):
        return original(**found)
    if found.get("copy_admitted_drafts_to_host"):
        raise EngineError.build(
            "drafts cannot be cut on the device",
            who="specplug_vllm",
            found="batch-sharded sampling, which needs their counts on the host",
            remedy=f"Leave {ADAPTIVE!r} out of --speculative-config, or switch batch-sharded sampling off",
        )
    from specplug_vllm.worker.budget_manager import BudgetManager

    if has_any_graphs(vllm_config):
        original(**found)  # raises if a backend or its graphs cannot; the manager it returns is dropped
    else:
        _refuse_backends(found["attn_groups"], found.get("target_layer_names"))
    needed = ("req_states", "query_start_loc", "num_bonus_tokens", "max_total_logits")
    return BudgetManager(**{name: found[name] for name in needed})


def _our_graph_mode(original: Callable[..., Any], mode: Any, **found: Any) -> Any:
    return original(mode, **found) if mode.has_full_cudagraphs() else mode


def _refuse_backends(attn_groups: Any, layer_names: set[str] | None) -> None:
    """Refuse attention backends that need every query length on the host; vLLM's check without the one of graphs."""
    from vllm.v1.worker.gpu.attn_utils import get_query_lens_mismatch_unsupported_backend

    backend = get_query_lens_mismatch_unsupported_backend(attn_groups, checked_layer_names=layer_names)
    if backend is not None:
        raise EngineError.build(
            "drafts cannot be cut on the device",
            who="specplug_vllm",
            found=f"attention backend {backend}, which plans from query lengths on the host",
            expected="a backend that reads them on the device",
            remedy=f"Leave {ADAPTIVE!r} out of --speculative-config, or choose another backend",
        )
