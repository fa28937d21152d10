"""Entry point of the adapter (``vllm.general_plugins``).  vLLM calls it in every process, before it builds a config.

Nothing is imported of what serves requests, or drafts, until a server enables specplug.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from specplug.operator import startup
from specplug.seams.seam import hook
from specplug_vllm import seams
from specplug_vllm.config import drafter_of, runner_of, use_of
from specplug_vllm.startup import engine_config

_WORKER = "vllm.v1.worker.worker_base"
_RUNNER = "vllm.v1.worker.gpu.model_runner"
_FACTORY = "init_speculator"


def register() -> None:
    """Install specplug's patches.  Cheap, idempotent, and without effect until a server enables specplug.

    If the seams of vLLM's configuration have moved, nothing is patched: servers without specplug start as usual, and
    `specplug_vllm.Proposer` refuses one that enables it.
    """
    if seams.moved_seams("config"):
        return
    # Then specplug follows vLLM's log format and handlers.
    logging.getLogger("specplug").parent = logging.getLogger("vllm")
    engine_config.install()
    import vllm.v1.worker.gpu.spec_decode as package
    from vllm.config.vllm import VllmConfig

    for module in (package, sys.modules.get(_RUNNER)):  # the runner's module may have imported the name already
        if hasattr(module, _FACTORY):
            hook(module, _FACTORY, _init_speculator)
    hook(VllmConfig, "__post_init__", _post_init)
    if _WORKER in sys.modules:  # in a worker process, which need not build a configuration
        _hook_worker()


def _post_init(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    """Accept requests' fields in a process that has built a configuration which enables specplug."""
    original(config, *args, **kwargs)
    if use_of(config):
        _hook_worker()
        seams.require("api")
        from specplug_vllm.frontend import intake
        from specplug_vllm.scheduler import timing

        intake.install()
        timing.install()


def _init_speculator(original: Callable[..., Any], vllm_config: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
    """Build the speculator of vLLM's V2 runner, in a worker process."""
    if use_of(vllm_config) != "proposers":
        speculator = original(vllm_config, device, *args, **kwargs)
        if drafter_of(vllm_config) == "draft_model":
            _take_length(speculator)
        return speculator
    seams.require("v2")
    from specplug_vllm.worker.v2 import Speculator

    return Speculator(vllm_config, device, args[0] if args else kwargs["req_states"])


def _hook_worker() -> None:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    hook(WorkerWrapperBase, "init_device", _init_device)


def _init_device(original: Callable[..., None], wrapper: Any, *args: Any, **kwargs: Any) -> None:
    """Correct a new runner's sampler, and let lookup continue the drafts of its drafter, if the server asks for it."""
    with startup.told_by_parent():
        original(wrapper, *args, **kwargs)
    config = wrapper.vllm_config
    if use_of(config):
        from specplug_vllm.worker import workarounds

        workarounds.install_token_logprobs(runner_of(config))
        if runner_of(config) == "v1":
            workarounds.install_thinking_budgets()
    if use_of(config) != "hybrid":
        return
    runner = wrapper.worker.model_runner
    if runner_of(config) == "v1":
        from specplug_vllm.worker.extended_v1 import ExtendedProposer

        runner.drafter.specplug = ExtendedProposer(runner)
    else:
        from specplug_vllm.worker.extended_v2 import ExtendedSpeculator

        runner.speculator.specplug = ExtendedSpeculator(runner)


def _take_length(speculator: Any) -> None:
    """Let a `StandaloneARSpeculator` draft as many tokens as a step needs.

    It drafts at least one: the pass that drafts it also enters the newest tokens in the draft model's key-value cache.
    """
    original = speculator.propose
    longest = speculator.num_speculative_steps

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
