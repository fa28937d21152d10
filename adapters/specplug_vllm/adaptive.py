"""Drafts of different lengths on V2: vLLM's adaptive verification, asked for by its own flag.

``"enable_adaptive_verification": true`` in ``--speculative-config`` lets the runner verify fewer draft tokens than were
scheduled: it admits, on the device and without waiting, those that the newest confidences favour.  vLLM drafts that way
with DSpark only, and learns from measured costs how many to admit; here every proposer can, and the plan's
`token_budget` says how many.

vLLM's own checks are kept: a backend that plans from query lengths on the host would serve wrong text, silently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from specplug.errors import EngineError
from specplug_vllm import seams
from specplug_vllm.asked import is_asked

FLAG = "enable_adaptive_verification"


# -- the configuration -----------------------------------------------------------------------------------------------


def install_checks(config_class: Any) -> None:
    """Let servers of ours run without CUDA graphs, which vLLM asks for because it measures costs on them."""
    original = config_class._validate_adaptive_verification
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def validate(self: Any) -> None:
        eager = is_asked(self) and not _has_any_graphs(self)
        original(_WithGraphs(self) if eager else self)

    validate._specplug = True  # type: ignore[attr-defined]
    config_class._validate_adaptive_verification = validate


class _WithGraphs:
    """A configuration as it would look with full CUDA graphs."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self.compilation_config = self
        self.cudagraph_mode = self

    def has_full_cudagraphs(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _has_any_graphs(vllm_config: Any) -> bool:
    return bool(vllm_config.compilation_config.cudagraph_mode.value)


# -- the runner ------------------------------------------------------------------------------------------------------


def install_manager() -> None:
    """Put our manager into the V2 runner's module, which is being used by our caller."""
    from vllm.v1.worker.gpu import model_runner

    seams.require("adaptive")
    for name, wrapped in _WRAPPED.items():
        original = getattr(model_runner, name)
        if not hasattr(original, "_specplug"):
            ours = wrapped(original)
            ours._specplug = True  # type: ignore[attr-defined]
            setattr(model_runner, name, ours)


def set_budget(runner: Any, token_budget: int | None) -> None:
    """Tell a runner how many draft tokens its next batch may verify; None is no limit.

    Every rank is told the same, so that all of them run batches of the same shape.
    """
    manager = getattr(runner, "adaptive_verification", None)
    if manager is not None and hasattr(manager, "token_budget"):
        manager.token_budget = token_budget


def _our_manager(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def maybe_create_adaptive_verification_manager(**found: Any) -> Any:
        vllm_config = found["vllm_config"]
        if not found[FLAG] or not is_asked(vllm_config):
            return original(**found)
        if found.get("copy_admitted_drafts_to_host"):
            raise EngineError.build(
                "drafts cannot be cut on the device",
                who="specplug_vllm",
                found="batch-sharded sampling, which needs their counts on the host",
                remedy=f"Leave {FLAG!r} out of --speculative-config, or switch batch-sharded sampling off",
            )
        from specplug_vllm.adaptive_manager import BudgetManager

        if _has_any_graphs(vllm_config):
            original(**found)  # raises where a backend or its graphs cannot; what it makes is dropped
        else:
            _refuse_backends(found["attn_groups"], found.get("target_layer_names"))
        needed = ("req_states", "query_start_loc", "num_bonus_tokens", "max_total_logits")
        return BudgetManager(**{name: found[name] for name in needed})

    return maybe_create_adaptive_verification_manager


def _our_graph_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resolve_adaptive_cudagraph_mode(mode: Any, **found: Any) -> Any:
        return original(mode, **found) if mode.has_full_cudagraphs() else mode

    return resolve_adaptive_cudagraph_mode


_WRAPPED = {
    "maybe_create_adaptive_verification_manager": _our_manager,
    "resolve_adaptive_cudagraph_mode": _our_graph_mode,
}


def _refuse_backends(attn_groups: Any, layer_names: set[str] | None) -> None:
    """Refuse attention backends that need the host to know every query length; vLLM's check, less that of graphs."""
    from vllm.v1.worker.gpu.attn_utils import get_query_lens_mismatch_unsupported_backend

    backend = get_query_lens_mismatch_unsupported_backend(attn_groups, checked_layer_names=layer_names)
    if backend is not None:
        raise EngineError.build(
            "drafts cannot be cut on the device",
            who="specplug_vllm",
            found=f"attention backend {backend}, which plans from query lengths on the host",
            expected="a backend that reads them on the device",
            remedy=f"Leave {FLAG!r} out of --speculative-config, or choose another backend",
        )
