"""The speculative algorithm that specplug registers with SGLang, and the server arguments that it refuses."""

from __future__ import annotations

import functools
from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from specplug.errors import EngineError, SpecplugError
from specplug.operator import startup
from specplug_sglang import seams
from specplug_sglang.config import (
    ALGORITHM,
    LENGTH_FLAG,
    default_requests_of,
    is_tree_mode,
    lossy_arguments,
    resolved,
    resolved_args,
)
from specplug_sglang.startup.refused import REFUSED, refusal, refuse_arguments

OFF = f"start without --speculative-algorithm {ALGORITHM}"


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
        """Build the relay between overlapped steps.

        For the n-gram SGLang always requests text lengths on the host, and so waits for every verification; here it
        does so only if `host_lengths` is set.
        """
        needed = needs_cpu_seq_lens and self.host_lengths
        return _relay()(device, self, req_to_token_pool, needed, needs_confidence_relay)

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
            if found.was_set("verifier"):
                named = f"setting 'verifier' {found.settings.verifier!r}"
                raise _refusal("SGLang verifies drafts itself", named, "settings without it")
        except SpecplugError as error:
            startup.show_message_only()
            raise ValueError(str(error)) from error
        tokens = found.settings.num_speculative_tokens + 1
        server_args.speculative_num_draft_tokens = tokens
        server_args.speculative_eagle_topk = server_args.speculative_eagle_topk or 1
        topk = server_args.speculative_eagle_topk
        # SGLang reserves cache for steps x topk tokens after each text, so this matches the tokens of a draft.
        server_args.speculative_num_steps = max(1, tokens - 1 if topk == 1 else tokens // topk)
        server_args.enable_mixed_chunk = False
        if server_args.max_running_requests is None:
            server_args.max_running_requests, _ = default_requests_of(server_args)


@functools.cache
def _relay() -> type:
    """Return the class of the relay, which carries text lengths only: tokens are in the worker's table."""
    from sglang.srt.managers.overlap_utils import FutureMap

    class Relay(FutureMap):
        """SGLang's relay without the tokens that its own n-gram drafts from."""

        def stash(self, future_indices: Any, payload: Any) -> None:
            """Store nothing."""

        def _resolve_spec_extras(self, batch: Any) -> None:
            """Load nothing."""

    return Relay


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
        if lossy := lossy_arguments(resolved_args(server_args)):
            raise _refusal("lossy acceptance is for chains", lossy, "--speculative-eagle-topk 1, or no thresholds")
    refuse_arguments(server_args, {**REFUSED, "speculative_ngram_external_corpus_path": None}, OFF)


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


def _refusal(what: str, found: str, expected: str) -> EngineError:
    return refusal(what, found, expected, OFF)
