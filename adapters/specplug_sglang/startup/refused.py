"""Server arguments that specplug refuses, because it would serve them incorrectly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sglang.srt.environ import envs

from specplug.errors import EngineError


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
