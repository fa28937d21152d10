"""Table of every vLLM symbol that this adapter patches, subclasses, calls or reads, and the parts that use it.

It serves two probes: each process compares its rows with the imported vLLM, and tests and ``specplug doctor`` compare
them with vLLM's sources.
"""

from __future__ import annotations

from typing import Literal

from specplug.seams.seam import Seam, Version, seam
from specplug_vllm.seams.frontend import FRONT
from specplug_vllm.seams.worker import WORKER

Where = Literal[
    "config",
    "scheduler",
    "v1",
    "v2",
    "api",
    "http",
    "verifier v1",
    "verifier v2",
    "engine drafts",
    "adaptive",
    "recurrent",
    "cli",
    "events",
    "routes",
    "streams",
    "metrics",
    "status",
    "nccl",
]
"""The parts of the adapter that use seams."""

OPTIONAL = {
    "events": "proposers learn nothing of new weights, sleep and waking up",
    "routes": "the routes below /specplug",
    "streams": "parsing streamed reasoning and tool calls token by token; vLLM parses several tokens at once",
    "metrics": "specplug's metrics on /metrics",
    "status": "the status of a server and orders to it",
    "nccl": "the communicator that is warm already: ranks send drafts through another one",
}
"""Parts that correct serving does not need, and what is off if their seams have moved."""

OLDEST: Version = (0, 32)
NEWEST: Version = (0, 33)

SKIPS_DRAFTS = (0, 33)
"""The first version whose data-parallel ranks agree to skip the drafts of a step."""

DIFFERENCES = {
    "skip_drafts": seam(
        "vllm.v1.worker.gpu.dp_utils:DPSyncState", "engine drafts", holds="skip_drafts", since=SKIPS_DRAFTS
    ),
}
"""Seams that only some versions have.  The adapter works with and without them."""

_CONFIG = (
    seam("vllm.engine.arg_utils:EngineArgs", "config", holds="additional_config speculative_config"),
    seam("vllm.engine.arg_utils:EngineArgs.create_engine_config", "config"),
    seam("vllm.config.vllm", "config", holds="VllmConfig"),
    # Later versions keep async scheduling on with every method on V2.
    seam("vllm.config.vllm", "config", holds="NgramGPUTypes", until=(0, 32)),
    seam("vllm.config.vllm:VllmConfig.__post_init__", "config"),
    seam("vllm.config.vllm:VllmConfig._get_v2_model_runner_unsupported_features", "config"),
    seam("vllm.config.vllm:VllmConfig._set_cudagraph_sizes", "config"),
    seam(
        "vllm.config.vllm:VllmConfig",
        "config",
        holds="additional_config device_config model_config parallel_config reasoning_config scheduler_config "
        "speculative_config use_v2_model_runner watermark_config",
    ),
    seam(
        "vllm.config.reasoning:ReasoningConfig",
        "config",
        holds="reasoning_end_token_ids reasoning_start_token_ids",
    ),
    seam(
        "vllm.config.speculative:SpeculativeConfig",
        "config",
        holds="method model num_speculative_tokens num_speculative_tokens_per_batch_size rejection_sample_method",
    ),
    seam(
        "vllm.config.parallel:ParallelConfig",
        "config",
        holds="data_parallel_index data_parallel_size pipeline_parallel_size tensor_parallel_size",
    ),
    seam(
        "vllm.config.scheduler:SchedulerConfig",
        "config",
        holds="async_scheduling long_prefill_token_threshold max_num_batched_tokens max_num_seqs scheduler_cls",
    ),
    seam("vllm.config.device:DeviceConfig", "config", holds="device_type"),
    seam(
        "vllm.config.model:ModelConfig",
        "config",
        holds="architecture get_vocab_size hf_config is_attention_free is_hybrid max_model_len model seed "
        "skip_tokenizer_init",
    ),
)

_SCHEDULER = (
    seam("vllm.v1.core.sched.scheduler:Scheduler.schedule", "scheduler"),
    seam("vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule", "scheduler", takes="scheduler_output"),
    seam(
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        "scheduler",
        takes="scheduler_output model_runner_output",
    ),
    seam(
        "vllm.v1.core.sched.scheduler:Scheduler.make_spec_decoding_stats",
        "scheduler",
        named="num_accepted_tokens num_draft_tokens request_id",
    ),
    seam("vllm.v1.engine:EngineCoreOutput", "scheduler", holds="finish_reason new_token_ids request_id"),
    seam("vllm.v1.engine:EngineCoreOutputs", "scheduler", holds="outputs"),
    seam("vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids", "scheduler", takes="draft_token_ids"),
    seam("vllm.v1.outputs:DraftTokenIds", "scheduler", holds="draft_token_ids req_ids"),
    seam(
        "vllm.v1.structured_output:StructuredOutputManager",
        "scheduler",
        holds="enable_in_reasoning reasoner_cls tokenizer",
    ),
    seam("vllm.v1.structured_output.request:StructuredOutputRequest", "scheduler", holds="grammar reasoning_ended"),
    seam("vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar", "scheduler", holds="matcher"),
    seam("vllm.v1.structured_output.backend_guidance:GuidanceGrammar", "scheduler", holds="ll_matcher"),
    seam(
        "vllm.v1.structured_output.backend_types:StructuredOutputGrammar",
        "scheduler",
        holds="accept_tokens fill_bitmask is_terminated rollback",
    ),
    seam("vllm.v1.core.sched.scheduler:Scheduler._free_request", "scheduler", takes="request"),
    seam("vllm.v1.core.sched.scheduler:Scheduler.reset_prefix_cache", "scheduler"),
    seam(
        "vllm.v1.core.sched.scheduler:Scheduler",
        "scheduler",
        holds="dynamic_sd_lookup kv_cache_config num_spec_tokens requests running structured_output_manager "
        "vllm_config",
    ),
    seam("vllm.v1.kv_cache_interface:KVCacheConfig", "scheduler", holds="kv_cache_groups"),
    seam("vllm.v1.kv_cache_interface:KVCacheGroupSpec", "scheduler", holds="kv_cache_spec"),
    seam("vllm.v1.kv_cache_interface:MambaSpec", "scheduler", holds="mamba_type"),
    seam(
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler",
        "scheduler",
        holds="_update_after_schedule make_spec_decoding_stats num_spec_tokens schedule",
    ),
    seam(
        "vllm.v1.request:Request",
        "scheduler",
        holds="all_token_ids cache_salt is_finished is_prefill_chunk max_tokens num_output_tokens num_prompt_tokens "
        "num_tokens output_token_ids request_id sampling_params spec_token_ids status structured_output_request "
        "use_structured_output",
    ),
    seam(
        "vllm.v1.request:RequestStatus", "scheduler", holds="FINISHED_ABORTED FINISHED_LENGTH_CAPPED FINISHED_STOPPED"
    ),
    seam(
        "vllm.sampling_params:SamplingParams",
        "scheduler",
        holds="include_stop_str_in_output min_tokens skip_special_tokens stop",
    ),
    seam("vllm.tokenizers:cached_tokenizer_from_config", "scheduler", takes="model_config"),
    seam("vllm.v1.outputs:ModelRunnerOutput", "engine drafts", holds="sampled_token_ids"),
    seam("vllm.v1.core.sched.output:SchedulerOutput", "engine drafts", holds="skip_drafts", since=SKIPS_DRAFTS),
    seam("vllm.config.model:ModelConfig", "config", holds="is_moe"),
    seam("vllm.v1.engine.core:EngineCore", "status", holds="model_executor scheduler vllm_config"),
    seam("vllm.v1.executor.abstract:Executor.collective_rpc", "status", takes="method"),
)

SEAMS: tuple[Seam, ...] = (*DIFFERENCES.values(), *_CONFIG, *_SCHEDULER, *WORKER, *FRONT)
