"""The speculative algorithm that specplug registers with SGLang, and the server arguments that it refuses."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from specplug.errors import EngineError, SpecplugError
from specplug.operator import startup_errors
from specplug_sglang import seams
from specplug_sglang.config import ALGORITHM, LENGTH_FLAG, is_tree_mode, resolved

MOST_REQUESTS = 48
"""Default of ``--max-running-requests``, as for SGLang's own n-gram."""


class Algorithm(CustomSpecAlgo):
    """specplug's algorithm.  It reports itself as SGLang's n-gram speculation, which also drafts without a model."""

    host_lengths = True
    """Whether steps need text lengths on the host; the worker sets it once it has attention backends."""

    def is_ngram(self) -> bool:
        """Return True, to share the n-gram's relay of results, dummy inputs for graphs, and external corpora."""
        return True

    def has_draft_kv(self) -> bool:
        """Return False: drafting caches no keys and values."""
        return False

    def need_topk(self) -> bool:
        """Return False: no hidden states or top-k are relayed between steps."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Return False: prefill servers send no draft state to decode servers."""
        return False

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> Any:
        """Build the relay between overlapped steps.

        For the n-gram SGLang always requests text lengths on the host, and so waits for every verification; here it
        does so only if `host_lengths` is set.
        """
        from specplug_sglang.startup.relay import Relay

        needed = needs_cpu_seq_lens and self.host_lengths
        return Relay(device, self, req_to_token_pool, needed, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Refuse unsupported server arguments and fill in omitted ones.

        Args:
            server_args: a proxy that records assignments.

        Raises:
            ValueError: the settings are invalid, or specplug does not support the server's configuration.
        """
        try:
            for where in ("algorithm", "worker"):  # a moved seam would end the scheduler a moment later
                seams.require(where)
            refuse_unsupported(server_args)
            found = resolved(server_args)
        except SpecplugError as error:
            startup_errors.show_message_only()
            raise ValueError(str(error)) from error
        tokens = found.settings.num_speculative_tokens + 1
        server_args.speculative_num_draft_tokens = tokens
        server_args.speculative_eagle_topk = server_args.speculative_eagle_topk or 1
        topk = server_args.speculative_eagle_topk
        # SGLang reserves cache for steps x topk tokens after each text, so this matches the tokens of a draft.
        server_args.speculative_num_steps = max(1, tokens - 1 if topk == 1 else tokens // topk)
        server_args.enable_mixed_chunk = False
        if server_args.max_running_requests is None:
            server_args.max_running_requests = MOST_REQUESTS


def refuse_unsupported(server_args: Any) -> None:
    """Refuse server arguments that specplug would serve incorrectly.

    Raises:
        EngineError: specplug does not support the server's configuration.
    """
    tokens, topk = server_args.speculative_num_draft_tokens, server_args.speculative_eagle_topk
    if tokens is not None and tokens < 1:
        raise _refusal("no room for the token that is verified with every draft", f"{LENGTH_FLAG} {tokens}", ">= 1")
    if topk is not None and topk < 1:
        raise _refusal("drafts are chains or trees", f"--speculative-eagle-topk {topk}", "1 for chains, more for trees")
    pages, backend = server_args.page_size or 1, server_args.attention_backend
    if is_tree_mode(server_args) and pages > 1 and backend != "flashinfer":
        raise _refusal(
            "trees with pages need flashinfer",
            f"--speculative-eagle-topk {topk}, --page-size {pages}, --attention-backend {backend}",
            "--page-size 1, --attention-backend flashinfer, or --speculative-eagle-topk 1",
        )
    if is_tree_mode(server_args):
        _refuse_trees_for_states(server_args)
    for name, expected in _REFUSED.items():
        value = getattr(server_args, name, expected)
        if value is not None and value != expected:
            flag = "--" + name.replace("_", "-")
            raise _refusal(_WHY.get(name, "not supported with specplug"), f"{flag} {value}", f"{expected!r}")
    if os.environ.get(_RUST, "").lower() in ("1", "true", "yes"):
        raise _refusal(_FIELDS_UNCHECKED, f"{_RUST}={os.environ[_RUST]}", "SGLang's own server in Python")
    simulated = envs.SGLANG_SIMULATE_ACC_LEN.get()
    if simulated > 0:
        raise _refusal("simulated acceptance emits other text", f"{_SIMULATED}={simulated}", f"{_SIMULATED} unset")


def _refuse_trees_for_states(server_args: Any) -> None:
    """Refuse trees for layers with a state per request, because not all of SGLang's follow a node's parent."""
    from sglang.srt.arg_groups.overrides import model_config_of
    from sglang.srt.configs.hybrid_arch import mambaish_config

    config = model_config_of(server_args)
    if mambaish_config(config) is None:
        return
    names = ", ".join(getattr(config.hf_config, "architectures", None) or ["this model"])
    raise _refusal(
        "trees cannot be verified by a model with recurrent state",
        f"{names}, --speculative-eagle-topk {server_args.speculative_eagle_topk}",
        "--speculative-eagle-topk 1",
    )


_REFUSED: dict[str, Any] = {
    "attn_dp_size": 1,
    "enable_dp_attention": False,  # old name of attn_dp_size; newer versions have converted it by now
    "pp_size": 1,
    "disaggregation_mode": "null",
    "speculative_adaptive": False,
    "speculative_use_rejection_sampling": False,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
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
_LOSSY = "SGLang's lossy acceptance changes the distribution of the text"
_FIELDS_UNCHECKED = "requests would reach the scheduler without their fields being checked"

_WHY = {
    "attn_dp_size": "attention with data parallelism is not supported",
    "enable_dp_attention": "attention with data parallelism is not supported",
    "pp_size": "pipeline parallelism is not supported",
    "disaggregation_mode": "prefill and decode on separate servers are not supported",
    "speculative_adaptive": "specplug's policy chooses draft lengths",
    "speculative_use_rejection_sampling": "SGLang's rejection sampling needs the drafts' distributions",
    "speculative_accept_threshold_single": _LOSSY,
    "speculative_accept_threshold_acc": _LOSSY,
    "enable_two_batch_overlap": "SGLang cannot split specplug's verification batches in two",
    "enable_linear_replayssm_spec": "SGLang's ring of verified states needs the same draft length in every step",
    "grpc_mode": _FIELDS_UNCHECKED,
    "smg_grpc_mode": _FIELDS_UNCHECKED,
}


def _refusal(what: str, found: str, expected: str) -> EngineError:
    remedy = f"Change it, or start without --speculative-algorithm {ALGORITHM}"
    error = EngineError.build(what, who="specplug_sglang", found=found, expected=expected, remedy=remedy)
    assert isinstance(error, EngineError)
    return error
