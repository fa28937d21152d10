"""specplug inside vLLM, on both of its model runners.

``--speculative-config '{"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": 15}'``
asks for it; ``--additional-config '{"specplug": {...}}'`` gives its settings.  Importing this package costs nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Proposer"]


def __getattr__(name: str) -> Any:
    """Load the proposer when vLLM asks for it by name."""
    if name == "Proposer":
        from specplug_vllm.worker.v1 import Proposer

        return Proposer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
