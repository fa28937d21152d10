"""What vLLM gets wrong with any speculation and what would end a server that speculates with specplug."""

from __future__ import annotations

import functools
from typing import Any


def allow_steps_without_drafts() -> None:
    """Let V1's rejection sampler pass steps without a single draft, once per process.

    Since 0.32 it sees those steps, too.  On a CPU its top-k then looks for the largest of no numbers, which raises and
    ends the engine.
    """
    import vllm.v1.sample.rejection_sampler as module

    original = module.apply_sampling_constraints
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def apply_sampling_constraints(logits: Any, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if len(logits) else logits

    apply_sampling_constraints._specplug = True  # type: ignore[attr-defined]
    module.apply_sampling_constraints = apply_sampling_constraints
