"""Table of every SGLang symbol that this adapter hooks, subclasses, calls or reads, and the parts that use it.

It serves two probes: each process compares its rows with the imported SGLang, and tests and ``specplug doctor``
compare them with SGLang's sources.
"""

from __future__ import annotations

from typing import Literal

from specplug.seams.seam import Seam, seam
from specplug.seams.support import Range
from specplug_sglang.seams.engine_drafts import ENGINE_DRAFTS
from specplug_sglang.seams.frontend import FRONT
from specplug_sglang.seams.grammar import GRAMMAR
from specplug_sglang.seams.scheduler import WORKER

Where = Literal["algorithm", "worker", "engine drafts", "api", "http", "cli", "events", "status", "metrics"]
"""The parts of the adapter that use seams."""

OPTIONAL = {
    "events": "proposers learn nothing of new weights, released memory and idle times",
    "status": "the status of a server and orders to it",
    "metrics": "specplug's metrics on /metrics",
}
"""Parts that correct serving does not need, and what is off if their seams have moved."""

VERSIONS = Range(engine="SGLang", oldest=(0, 5, 22), newest=(0, 5, 23))
"""Supported versions: `make test` runs the newest, `make test-versions` the others."""

_ALGORITHM = (
    seam("sglang.srt.plugins.hook_registry:HookRegistry.register", "algorithm", takes="target hook hook_type"),
    seam("sglang.srt.plugins.hook_registry:HookType", "algorithm", holds="AFTER AROUND BEFORE"),
    seam(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.register",
        "algorithm",
        takes="name",
        named="spec_class supports_overlap validate_server_args",
    ),
    seam("sglang.srt.speculative.spec_registry:get_spec", "algorithm", takes="name"),
    seam("sglang.srt.speculative.spec_registry:CustomSpecAlgo.handle_server_args", "algorithm", takes="server_args"),
    seam("sglang.srt.speculative.spec_registry:CustomSpecAlgo", "algorithm", holds="has_draft_kv is_ngram"),
    seam(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm",
        "algorithm",
        holds="carries_draft_hidden_states create_future_map need_topk",
    ),
    seam(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.create_future_map",
        "algorithm",
        takes="device req_to_token_pool needs_cpu_seq_lens needs_confidence_relay",
    ),
    seam("sglang.srt.arg_groups.overrides:resolving_view", "algorithm", takes="server_args"),
    seam("sglang.srt.environ", "algorithm", holds="envs"),
    seam("sglang.srt.arg_groups.overrides:model_config_of", "algorithm", takes="server_args"),
    seam("sglang.srt.configs.hybrid_arch:mambaish_config", "algorithm", takes="model_config"),
    seam("sglang.srt.configs.model_config:ModelConfig", "algorithm", holds="context_len hf_config"),
    seam("sglang.srt.utils.common:get_device_memory_capacity", "algorithm", takes="device"),
)

_ARGUMENTS = (
    seam(
        "sglang.srt.arg_groups.fields.spec:Spec",
        "algorithm",
        holds="speculative_accept_threshold_acc speculative_accept_threshold_single speculative_adaptive "
        "speculative_algorithm speculative_eagle_topk speculative_num_draft_tokens speculative_num_steps "
        "speculative_use_rejection_sampling",
    ),
    seam(
        "sglang.srt.arg_groups.fields.schedule:Schedule",
        "algorithm",
        holds="disable_overlap_schedule enable_mixed_chunk max_running_requests page_size",
    ),
    seam(
        "sglang.srt.arg_groups.fields.parallel:Parallel",
        "algorithm",
        holds="enable_dp_attention pp_size tp_size",
    ),
    seam("sglang.srt.arg_groups.fields.device:Device", "algorithm", holds="device"),
    seam("sglang.srt.arg_groups.fields.exec_:ExecKernel", "algorithm", holds="attention_backend grammar_backend"),
    seam("sglang.srt.arg_groups.fields.disagg:Disagg", "algorithm", holds="disaggregation_mode enable_pdmux"),
    seam("sglang.srt.arg_groups.fields.memory:Memory", "algorithm", holds="enable_hisparse"),
    seam(
        "sglang.srt.arg_groups.fields.observability:Observability",
        "algorithm",
        holds="enable_forward_pass_metrics",
    ),
    seam("sglang.srt.arg_groups.fields.exec_:ExecFeatures", "algorithm", holds="enable_watermark"),
    seam("sglang.srt.arg_groups.fields.exec_:ExecMamba", "algorithm", holds="enable_linear_replayssm_spec"),
    seam("sglang.srt.arg_groups.fields.exec_:ExecOverlap", "algorithm", holds="enable_two_batch_overlap"),
    seam("sglang.srt.environ:Envs", "algorithm", holds="SGLANG_SIMULATE_ACC_LEN"),
    seam("sglang.srt.arg_groups.fields.serving:Serving", "algorithm", holds="grpc_mode smg_grpc_mode"),
)
"""The classes from which SGLang assembles a server's arguments."""

SEAMS: tuple[Seam, ...] = (*_ALGORITHM, *_ARGUMENTS, *WORKER, *GRAMMAR, *ENGINE_DRAFTS, *FRONT)
