"""Drafts of different lengths on V2, through vLLM's adaptive verification and its own flag.

With ``"enable_adaptive_verification": true`` in ``--speculative-config`` the runner verifies fewer draft tokens than
were scheduled: it picks those with the highest confidences on the device, without a host sync.  vLLM supports this for
DSpark only, and derives the number of tokens from measured costs; here it works for every proposer, and the plan's
`token_budget` sets the number.

vLLM's own checks are kept: a backend that plans from query lengths on the host would silently serve wrong text.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug_vllm.config import proposes

FLAG = "enable_adaptive_verification"


def install_checks(config_class: Any) -> None:
    """Allow servers with specplug to run without CUDA graphs, which vLLM requires to measure costs."""
    original = config_class._validate_adaptive_verification
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def validate(self: Any) -> None:
        eager = proposes(self) and not has_any_graphs(self)
        original(_WithGraphs(self) if eager else self)

    validate._specplug = True  # type: ignore[attr-defined]
    config_class._validate_adaptive_verification = validate


class _WithGraphs:
    """View of a configuration that reports full CUDA graphs."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self.compilation_config = self
        self.cudagraph_mode = self

    def has_full_cudagraphs(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def has_any_graphs(vllm_config: Any) -> bool:
    """Return whether the engine captures CUDA graphs of any kind."""
    return bool(vllm_config.compilation_config.cudagraph_mode.value)
