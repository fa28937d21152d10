"""vLLM adapter of specplug, for both of vLLM's model runners.

``--speculative-config '{"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": 15}'``
enables it; ``--additional-config '{"specplug": {...}}'`` holds its settings.  Importing this package imports no vLLM.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Proposer"]


def __getattr__(name: str) -> Any:
    """Import `Proposer` when vLLM looks it up."""
    if name == "Proposer":
        from specplug_vllm.worker.v1 import V1Proposer

        return V1Proposer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
