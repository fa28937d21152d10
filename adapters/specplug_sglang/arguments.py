"""The speculative algorithm that specplug registers with SGLang, and the server arguments that it refuses.

Those are arguments with which it would serve incorrectly; with SGLang's own drafters some more are refused.
"""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from specplug.errors import EngineError
from specplug.operator import startup
from specplug.settings.sources import CONFIG_VARIABLE
from specplug_sglang import seams
from specplug_sglang.config import (
    ALGORITHM,
    LENGTH_FLAG,
    default_requests_of,
    drafter,
    is_tree_mode,
    lossy_arguments,
    refusals,
    resolved,
    resolved_args,
    resolved_hybrid,
    use_of,
)

OFF = f"start without --speculative-algorithm {ALGORITHM}"


_RUST = "SGLANG_RUST_SERVER"
_SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
_SKIPS = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"
_FIELDS_UNCHECKED = "requests would reach the scheduler without their fields being checked"
_DATA_PARALLEL = "attention with data parallelism is not supported"
_UNSUPPORTED = "not supported with specplug"

Refused = dict[str, tuple[Any, str]]
"""By argument, the only value that is accepted in addition to None, and why."""

REFUSED: Refused = {
    "attn_dp_size": (1, _DATA_PARALLEL),
    "enable_dp_attention": (False, _DATA_PARALLEL),  # attn_dp_size's old name; newer versions have converted it by now
    "pp_size": (1, "pipeline parallelism is not supported"),
    "disaggregation_mode": ("null", "prefill and decode on separate servers are not supported"),
    "speculative_adaptive": (False, "specplug's policy chooses draft lengths"),
    "speculative_use_rejection_sampling": (False, "SGLang's rejection sampling needs the drafts' distributions"),
    "enable_two_batch_overlap": (False, "SGLang cannot split specplug's verification batches in two"),
    "enable_linear_replayssm_spec": (
        False,
        "SGLang's ring of verified states needs the same draft length in every step",
    ),
    "enable_pdmux": (False, _UNSUPPORTED),
    "enable_watermark": (False, _UNSUPPORTED),
    "enable_hisparse": (False, _UNSUPPORTED),
    "grpc_mode": (False, _FIELDS_UNCHECKED),
    "smg_grpc_mode": (False, _FIELDS_UNCHECKED),
}

_MOVES = "tokens that are verified as nodes of a tree change their places in the cache, unlike those of chains"
OF_TREES: Refused = {
    "enable_return_routed_experts": (False, _MOVES),
    "enable_return_indexer_topk": (False, _MOVES),
}

OF_PROPOSERS: Refused = {
    **REFUSED,
    "speculative_ngram_external_corpus_path": (
        None,
        "specplug's corpora are in a store; name it as corpora.store, and see `specplug corpus add`",
    ),
}

OF_DRAFTERS: Refused = {
    **REFUSED,
    "speculative_eagle_topk": (1, "SGLang changes the draft length of chains only"),
    "enable_multi_layer_eagle": (False, "SGLang's worker of several draft layers cannot change its draft length"),
    "enable_lora": (False, "SGLang's graphs for adapters need the same draft length in every step"),
}

OF_EXTENDED: Refused = {
    **OF_DRAFTERS,
    "tp_size": (1, "lookup after SGLang's own drafter is not shared between ranks"),
}

METHODS = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms whose workers build a runtime state per draft length; SGLang resolves NEXTN to EAGLE."""

ENGINE_OFF = f"take the proposer out of {CONFIG_VARIABLE}, which leaves the drafter to SGLang"


class Algorithm(CustomSpecAlgo):
    """specplug's algorithm.  It reports itself as SGLang's n-gram speculation, which also drafts without a model."""

    host_lengths = True
    """Whether steps need text lengths on the host; the worker sets it once it has attention backends."""

    def is_ngram(self) -> bool:
        """Return True, to share the n-gram's relay of results and dummy inputs for graphs."""
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
        """Build the relay between overlapped steps, which carries text lengths only: tokens are in the worker's table.

        For the n-gram SGLang always requests text lengths on the host, and so waits for every verification; here it
        does so only if `host_lengths` is set.
        """
        from sglang.srt.managers.overlap_utils import FutureMap

        class Relay(FutureMap):
            def stash(self, future_indices: Any, payload: Any) -> None:
                """Store no tokens for SGLang's own n-gram."""

            def _resolve_spec_extras(self, batch: Any) -> None:
                """Load none."""

        needed = needs_cpu_seq_lens and self.host_lengths
        return Relay(device, self, req_to_token_pool, needed, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Refuse unsupported server arguments and fill in omitted ones.

        Raises:
            ValueError: the settings are invalid, or specplug does not support the server's configuration.
        """
        with refusals():
            for where in ("algorithm", "worker"):  # a moved seam would end the scheduler a moment later
                seams.require(where)
            refuse_unsupported(server_args)
            found = resolved(server_args)
            startup.require_startable(found.settings, str(resolved_args(server_args).device or "cpu"))
            if found.was_set("verifier"):
                named = f"setting 'verifier' {found.settings.verifier!r}"
                raise refusal("SGLang verifies drafts itself", named, "settings without it")
            if found.settings.draft_ranks == "each" and server_args.tp_size > 1:  # their plans follow rank 0's clock
                raise refusal("rank 0 plans and drafts", "setting 'draft_ranks' 'each' on several ranks", "'first'")
        startup.expect_children()
        tokens = found.settings.num_speculative_tokens + 1
        server_args.speculative_num_draft_tokens = tokens
        server_args.speculative_eagle_topk = server_args.speculative_eagle_topk or 1
        topk = server_args.speculative_eagle_topk
        # SGLang reserves cache for steps x topk tokens after each text, so this matches the tokens of a draft.
        server_args.speculative_num_steps = max(1, tokens - 1 if topk == 1 else tokens // topk)
        server_args.enable_mixed_chunk = False
        if server_args.max_running_requests is None:
            server_args.max_running_requests, _ = default_requests_of(server_args)


def refuse_unsupported(server_args: Any) -> None:
    """Refuse server arguments that specplug would serve incorrectly (`EngineError`)."""
    tokens = server_args.speculative_num_draft_tokens
    topk = server_args.speculative_eagle_topk
    if tokens is not None and tokens < 1:
        raise refusal("no room for the token that is verified with every draft", f"{LENGTH_FLAG} {tokens}", ">= 1")
    if topk is not None and topk < 1:
        raise refusal("drafts are chains or trees", f"--speculative-eagle-topk {topk}", "1 for chains, more for trees")
    pages = server_args.page_size or 1
    backend = server_args.attention_backend
    if is_tree_mode(server_args) and pages > 1 and backend != "flashinfer":
        raise refusal(
            "trees with pages need flashinfer",
            f"--speculative-eagle-topk {topk}, --page-size {pages}, --attention-backend {backend}",
            "--page-size 1, --attention-backend flashinfer, or --speculative-eagle-topk 1",
        )
    if is_tree_mode(server_args):
        _refuse_trees_for_states(server_args)
        refuse_arguments(server_args, OF_TREES, OFF)
        if lossy := lossy_arguments(resolved_args(server_args)):
            raise refusal("lossy acceptance is for chains", lossy, "--speculative-eagle-topk 1, or no thresholds")
    refuse_arguments(server_args, OF_PROPOSERS, OFF)


def _refuse_trees_for_states(server_args: Any) -> None:
    """Refuse trees for layers with a state per request, because not all of SGLang's follow a node's parent."""
    from sglang.srt.arg_groups.overrides import model_config_of
    from sglang.srt.configs.hybrid_arch import mambaish_config

    config = model_config_of(server_args)
    if mambaish_config(config) is None:
        return
    names = ", ".join(getattr(config.hf_config, "architectures", None) or ["this model"])
    raise refusal(
        "trees cannot be verified by a model with recurrent state",
        f"{names}, --speculative-eagle-topk {server_args.speculative_eagle_topk}",
        "--speculative-eagle-topk 1",
    )


def refuse_arguments(server_args: Any, refused: Refused, alternative: str) -> None:
    """Refuse `refused` arguments and environment variables (`EngineError`); `alternative` is how to start without."""
    for name, (expected, why) in refused.items():
        value = getattr(server_args, name, expected)
        if value is not None and value != expected:
            raise refusal(why, f"--{name.replace('_', '-')} {value}", f"{expected!r}", alternative)
    if os.environ.get(_RUST, "").lower() in ("1", "true", "yes"):
        raise refusal(_FIELDS_UNCHECKED, f"{_RUST}={os.environ[_RUST]}", "SGLang's own server in Python", alternative)
    simulated = envs.SGLANG_SIMULATE_ACC_LEN.get()
    if simulated > 0:
        what = "simulated acceptance emits other text"
        found = f"{_SIMULATED}={simulated}"
        raise refusal(what, found, f"{_SIMULATED} unset", alternative)


def refusal(what: str, found: str, expected: str, alternative: str = OFF) -> EngineError:
    """Return the error for a configuration; see `refuse_arguments`."""
    remedy = f"Change it, or {alternative}"
    error = EngineError.build(what, who="specplug_sglang", found=found, expected=expected, remedy=remedy)
    assert isinstance(error, EngineError)
    return error


def complete_arguments(algorithm: Any, server_args: Any) -> None:
    """Fill in what SGLang asks of a chain, steps for all its tokens, where lookup continues the drafts of its drafter.

    Its workers run `engine_tokens` steps; see `scheduler.extending`.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution

    with refusals():
        if use_of(server_args) != "hybrid":
            return
        view = resolved_args(server_args)
        found, own = resolved_hybrid(server_args)
        length = found.settings.num_speculative_tokens
        steps = view.speculative_num_steps
        if steps not in (None, own, length):
            raise refusal(
                "the drafter's steps are given twice",
                f"--speculative-num-steps {steps}, and {own} by options.hybrid.model_tokens",
                f"--speculative-num-steps {own}, or none",
                ENGINE_OFF,
            )
    declare_resolution(
        server_args,
        "specplug",
        speculative_num_steps=length,
        speculative_num_draft_tokens=length + 1,
        speculative_eagle_topk=view.speculative_eagle_topk or 1,
    )


def check_arguments(result: None, algorithm: Any, server_args: Any) -> None:
    """Check the arguments that SGLang has resolved for its algorithm; raise ValueError as `handle_server_args` does."""
    with refusals():
        if drafter(server_args):
            for where in ("worker", "engine drafts"):  # a moved seam would end the scheduler a moment later
                seams.require(where)
            refused = OF_EXTENDED if use_of(server_args) == "hybrid" else OF_DRAFTERS
            refuse_for_drafter(resolved_args(server_args), refused)
            startup.require_startable(resolved(server_args).settings, str(resolved_args(server_args).device or "cpu"))
            startup.expect_children()


def refuse_for_drafter(server_args: Any, refused: Refused) -> None:
    """Refuse arguments with which the draft length cannot change, or the text would be inexact (`EngineError`)."""
    algorithm = server_args.speculative_algorithm
    if algorithm not in METHODS:
        found = f"--speculative-algorithm {algorithm}"
        expected = ", ".join(METHODS)
        raise refusal("the draft length of this algorithm cannot be planned", found, expected, ENGINE_OFF)
    refuse_arguments(server_args, refused, ENGINE_OFF)
    if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
        what = "the draft model would not see the tokens of steps without drafts, and later drafts would be wrong"
        raise refusal(what, f"{_SKIPS}=1", f"{_SKIPS} unset", ENGINE_OFF)
