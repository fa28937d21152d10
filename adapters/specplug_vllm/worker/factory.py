"""Hook of `init_speculator`, by which vLLM's V2 runner builds its speculator in each worker process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from specplug.seams.hook import hook
from specplug_vllm import seams
from specplug_vllm.config import engine_method, proposes

_RUNNER = "vllm.v1.worker.gpu.model_runner"
_NAME = "init_speculator"


def install() -> None:
    """Hook the factory, once per process, also in the runner's module if that has already imported the name."""
    import vllm.v1.worker.gpu.spec_decode as package

    for module in (package, sys.modules.get(_RUNNER)):
        if hasattr(module, _NAME):
            hook(module, _NAME, _init_speculator)


def _init_speculator(original: Callable[..., Any], vllm_config: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
    if not proposes(vllm_config):
        speculator = original(vllm_config, device, *args, **kwargs)
        if engine_method(vllm_config) == "draft_model":
            take_length(speculator)
        return speculator
    seams.require("v2")
    from specplug_vllm.worker.v2 import Speculator

    return Speculator(vllm_config, device, args[0] if args else kwargs["req_states"])


def take_length(speculator: Any) -> None:
    """Let a `StandaloneARSpeculator` draft as many tokens as a step needs.

    It drafts at least one: the pass that drafts it also enters the newest tokens in the draft model's key-value cache.
    """
    original, longest = speculator.propose, speculator.num_speculative_steps

    @functools.wraps(original)
    def propose(input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any) -> Any:
        needed = longest if num_speculative_tokens is None else num_speculative_tokens
        speculator.num_speculative_steps = min(longest, max(1, needed))
        try:
            original(input_batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        finally:
            speculator.num_speculative_steps = longest
        return speculator.draft_tokens[: input_batch.num_reqs]

    speculator.propose = propose
