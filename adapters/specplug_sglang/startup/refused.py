"""Server arguments that specplug refuses, as it would serve them incorrectly; those of SGLang's own drafters too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sglang.srt.environ import envs

from specplug.errors import EngineError, SpecplugError
from specplug.operator import startup
from specplug.settings.sources import CONFIG_VARIABLE
from specplug_sglang import seams
from specplug_sglang.config import HANDLES_ARGUMENTS, engine_method, resolved, resolved_args


def refuse_arguments(server_args: Any, refused: Mapping[str, Any], alternative: str) -> None:
    """Refuse arguments and environment variables that are not supported.

    Args:
        server_args: a server's arguments.
        refused: the only value of each argument that is accepted in addition to None.
        alternative: how to start the server without specplug, for messages.

    Raises:
        EngineError: specplug does not support the server's configuration.
    """
    for name, expected in refused.items():
        value = getattr(server_args, name, expected)
        if value is not None and value != expected:
            flag = "--" + name.replace("_", "-")
            what = _WHY.get(name, "not supported with specplug")
            raise refusal(what, f"{flag} {value}", f"{expected!r}", alternative)
    if os.environ.get(_RUST, "").lower() in ("1", "true", "yes"):
        raise refusal(_FIELDS_UNCHECKED, f"{_RUST}={os.environ[_RUST]}", "SGLang's own server in Python", alternative)
    simulated = envs.SGLANG_SIMULATE_ACC_LEN.get()
    if simulated > 0:
        what, found = "simulated acceptance emits other text", f"{_SIMULATED}={simulated}"
        raise refusal(what, found, f"{_SIMULATED} unset", alternative)


def refusal(what: str, found: str, expected: str, alternative: str) -> EngineError:
    """Return the error for a configuration; see `refuse_arguments`."""
    remedy = f"Change it, or {alternative}"
    error = EngineError.build(what, who="specplug_sglang", found=found, expected=expected, remedy=remedy)
    assert isinstance(error, EngineError)
    return error


REFUSED: dict[str, Any] = {
    "attn_dp_size": 1,
    "enable_dp_attention": False,  # old name of attn_dp_size; newer versions have converted it by now
    "pp_size": 1,
    "disaggregation_mode": "null",
    "speculative_adaptive": False,
    "speculative_use_rejection_sampling": False,
    "enable_two_batch_overlap": False,
    "enable_linear_replayssm_spec": False,
    "enable_pdmux": False,
    "enable_watermark": False,
    "enable_hisparse": False,
    "grpc_mode": False,
    "smg_grpc_mode": False,
}
"""Arguments that are refused unless they have this value."""

_RUST = "SGLANG_RUST_SERVER"
_SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
_FIELDS_UNCHECKED = "requests would reach the scheduler without their fields being checked"

_WHY = {
    "attn_dp_size": "attention with data parallelism is not supported",
    "enable_dp_attention": "attention with data parallelism is not supported",
    "pp_size": "pipeline parallelism is not supported",
    "disaggregation_mode": "prefill and decode on separate servers are not supported",
    "speculative_adaptive": "specplug's policy chooses draft lengths",
    "speculative_use_rejection_sampling": "SGLang's rejection sampling needs the drafts' distributions",
    "enable_two_batch_overlap": "SGLang cannot split specplug's verification batches in two",
    "enable_linear_replayssm_spec": "SGLang's ring of verified states needs the same draft length in every step",
    "speculative_ngram_external_corpus_path": "specplug's corpora are in a store; name it as corpora.store, and see "
    "`specplug corpus add`",
    "speculative_eagle_topk": "SGLang changes the draft length of chains only",
    "enable_multi_layer_eagle": "SGLang's worker of several draft layers cannot change its draft length",
    "enable_lora": "SGLang's graphs for adapters need the same draft length in every step",
    "grpc_mode": _FIELDS_UNCHECKED,
    "smg_grpc_mode": _FIELDS_UNCHECKED,
}


METHODS = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms whose workers build a runtime state per draft length; SGLang resolves NEXTN to EAGLE."""

OFF = f"take the proposer 'engine' out of {CONFIG_VARIABLE}, which leaves the drafter to SGLang"

_REFUSED: dict[str, Any] = {
    **REFUSED,
    "speculative_eagle_topk": 1,
    "enable_multi_layer_eagle": False,
    "enable_lora": False,
}

_SKIPS = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


def install() -> None:
    """Hook SGLang's resolution of an algorithm's arguments; other servers are unchanged."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HANDLES_ARGUMENTS, handled, HookType.AFTER)


def handled(result: None, algorithm: Any, server_args: Any) -> None:
    """Check the arguments that SGLang has resolved for its algorithm.

    Raises:
        ValueError: the settings are invalid, or specplug does not support the server's configuration.
    """
    try:
        if engine_method(server_args) is None:
            return
        for where in ("worker", "engine drafts"):  # a moved seam would end the scheduler a moment later
            seams.require(where)
        refuse_for_drafter(resolved_args(server_args))
        resolved(server_args)
    except SpecplugError as error:
        startup.show_message_only()
        raise ValueError(str(error)) from error


def refuse_for_drafter(server_args: Any) -> None:
    """Refuse arguments with which specplug cannot change the draft length, or which make the text inexact.

    Raises:
        EngineError: specplug does not support the server's configuration.
    """
    algorithm = server_args.speculative_algorithm
    if algorithm not in METHODS:
        found, expected = f"--speculative-algorithm {algorithm}", ", ".join(METHODS)
        raise refusal("the draft length of this algorithm cannot be planned", found, expected, OFF)
    refuse_arguments(server_args, _REFUSED, OFF)
    if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
        what = "the draft model would not see the tokens of steps without drafts, and later drafts would be wrong"
        raise refusal(what, f"{_SKIPS}=1", f"{_SKIPS} unset", OFF)
