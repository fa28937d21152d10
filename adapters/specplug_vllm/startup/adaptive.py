"""Drafts of different lengths on V2: vLLM's adaptive verification, asked for by its own flag.

``"enable_adaptive_verification": true`` in ``--speculative-config`` lets the runner verify fewer draft tokens than were
scheduled: it admits, on the device and without waiting, those that the newest confidences favour.  vLLM drafts that way
with DSpark only, and learns from measured costs how many to admit; here every proposer can, and the plan's
`token_budget` says how many.

vLLM's own checks are kept: a backend that plans from query lengths on the host would serve wrong text, silently.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug_vllm.config import is_requested

FLAG = "enable_adaptive_verification"


def install_checks(config_class: Any) -> None:
    """Let servers of ours run without CUDA graphs, which vLLM asks for because it measures costs on them."""
    original = config_class._validate_adaptive_verification
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def validate(self: Any) -> None:
        eager = is_requested(self) and not has_any_graphs(self)
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


def has_any_graphs(vllm_config: Any) -> bool:
    """Whether the engine captures CUDA graphs of any kind."""
    return bool(vllm_config.compilation_config.cudagraph_mode.value)
