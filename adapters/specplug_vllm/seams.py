"""Checks of vLLM's version and private names, used by the rest of the adapter, and the table of these names.

Each process probes the names of a part of the adapter before it uses that part.  If a seam has moved, the server does
not start; if only an optional part uses the seam, that part is switched off with a warning.  Tests and ``specplug
doctor`` compare the table with vLLM's sources.
"""

from __future__ import annotations

import functools
from typing import Literal

from specplug.seams.probe import imported, problems
from specplug.seams.seam import Version, seam, table
from specplug.seams.support import Range, Support

Where = Literal[
    "config", "scheduler", "v1", "v2", "api", "http", "verifier v1", "verifier v2", "engine drafts", "adaptive",
    "recurrent", "cli", "events", "routes", "streams", "metrics", "status", "nccl",
]  # fmt: skip
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
VERSIONS = Range(engine="vLLM", oldest=OLDEST, newest=NEWEST, compared=frozenset({NEWEST}))  # it has no CPU build

DIFFERENCES = {
    "skip_drafts": seam("vllm.v1.worker.gpu.dp_utils:DPSyncState", "engine drafts", holds="skip_drafts", since=(0, 33)),
}
"""Seams that only some versions have.  The adapter works with and without them."""

_TABLE = """
[config]
vllm.engine.arg_utils:EngineArgs: additional_config create_engine_config speculative_config
vllm.config.vllm: VllmConfig
# Later versions keep async scheduling on with every method on V2.
vllm.config.vllm: NgramGPUTypes <= 0.32
  VllmConfig: __post_init__ _get_v2_model_runner_unsupported_features _set_cudagraph_sizes
      _validate_adaptive_verification additional_config device_config model_config parallel_config reasoning_config
      scheduler_config speculative_config use_v2_model_runner watermark_config
vllm.config.reasoning:ReasoningConfig: reasoning_end_token_ids reasoning_start_token_ids
vllm.config.speculative:SpeculativeConfig: enable_adaptive_verification method model num_speculative_tokens
    num_speculative_tokens_per_batch_size rejection_sample_method
vllm.config.parallel:ParallelConfig: data_parallel_index data_parallel_size pipeline_parallel_size
    tensor_parallel_size
vllm.config.scheduler:SchedulerConfig: async_scheduling long_prefill_token_threshold max_num_batched_tokens
    max_num_seqs scheduler_cls
vllm.config.device:DeviceConfig: device_type
vllm.config.model:ModelConfig: architecture get_vocab_size hf_config is_attention_free is_hybrid is_moe
    max_model_len model seed skip_tokenizer_init

[scheduler]
vllm.v1.core.sched.scheduler
  Scheduler: dynamic_sd_lookup kv_cache_config num_spec_tokens requests reset_prefix_cache running schedule
      structured_output_manager vllm_config
  Scheduler._update_after_schedule(scheduler_output)
  Scheduler.update_from_output(scheduler_output, model_runner_output)
  Scheduler.make_spec_decoding_stats(*, num_accepted_tokens, num_draft_tokens, request_id)
  Scheduler.update_draft_token_ids(draft_token_ids)
  Scheduler._free_request(request)
vllm.v1.engine
  EngineCoreOutput: finish_reason new_token_ids request_id
  EngineCoreOutputs: outputs
vllm.v1.outputs:DraftTokenIds: draft_token_ids req_ids
vllm.v1.structured_output:StructuredOutputManager: enable_in_reasoning reasoner_cls tokenizer
vllm.v1.structured_output.request:StructuredOutputRequest: grammar reasoning_ended
vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar: matcher
vllm.v1.structured_output.backend_guidance:GuidanceGrammar: ll_matcher
vllm.v1.structured_output.backend_types:StructuredOutputGrammar: accept_tokens fill_bitmask is_terminated rollback
vllm.v1.kv_cache_interface
  KVCacheConfig: kv_cache_groups
  KVCacheGroupSpec: kv_cache_spec
  MambaSpec: mamba_type
vllm.v1.core.sched.async_scheduler:AsyncScheduler: _update_after_schedule make_spec_decoding_stats num_spec_tokens
    schedule
vllm.v1.request
  Request: all_token_ids cache_salt is_finished is_prefill_chunk max_tokens num_output_tokens num_prompt_tokens
      num_tokens output_token_ids request_id sampling_params spec_token_ids status structured_output_request
      use_structured_output
  RequestStatus: FINISHED_ABORTED FINISHED_LENGTH_CAPPED FINISHED_STOPPED
vllm.sampling_params:SamplingParams: include_stop_str_in_output min_tokens skip_special_tokens stop
vllm.tokenizers:cached_tokenizer_from_config(model_config)
vllm.v1.core.sched.output:CachedRequestData: num_computed_tokens

[engine drafts]
vllm.v1.outputs:ModelRunnerOutput: sampled_token_ids
vllm.v1.core.sched.output:SchedulerOutput: skip_drafts >= 0.33
vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose(*, num_speculative_tokens)
vllm.v1.spec_decode.ngram_proposer:NgramProposer.propose(num_speculative_tokens)
vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator
  StandaloneARSpeculator.propose(input_batch, *, num_speculative_tokens)
  StandaloneARSpeculator: draft_tokens num_speculative_steps
vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.propose(*,
    num_speculative_tokens)

[status]
vllm.v1.engine.core:EngineCore: model_executor scheduler vllm_config
vllm.v1.executor.abstract:Executor.collective_rpc(method)

[v1, v2]
vllm.tokenizers:cached_tokenizer_from_config(model_config)
vllm.distributed:get_tp_group
vllm.distributed.parallel_state
  GroupCoordinator: device_communicator rank_in_group world_size
  GroupCoordinator.broadcast(input_, src)
vllm.distributed.device_communicators.base_device_communicator:DeviceCommunicatorBase.broadcast(tensor, src)
vllm.v1.core.sched.output:NewRequestData: lora_request mm_features prefill_token_ids prompt_embeds prompt_token_ids
    req_id sampling_params
vllm.v1.worker.gpu_worker:Worker: determine_available_memory
vllm.v1.worker.worker_base:WorkerBase: cache_config
vllm.config.cache:CacheConfig: kv_cache_memory_bytes
vllm.lora.request:LoRARequest: lora_int_id
vllm.multimodal.inputs
  MultiModalFeatureSpec: mm_position
  PlaceholderRange: length offset

[nccl]
vllm.distributed.device_communicators.cuda_communicator:CudaCommunicator: pynccl_comm
vllm.distributed.device_communicators.pynccl:PyNcclCommunicator: disabled

[scheduler, v1, v2]
vllm.v1.core.sched.output:SchedulerOutput: __dict__ finished_req_ids num_scheduled_tokens
    num_spec_tokens_to_schedule preempted_req_ids scheduled_cached_reqs scheduled_new_reqs
    scheduled_spec_decode_tokens

[v1]
vllm.v1.core.sched.output:CachedRequestData: resumed_req_ids
vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer(vllm_config)
vllm.v1.worker.gpu_model_runner
  GPUModelRunner.execute_model(scheduler_output)
  GPUModelRunner: _draft_prob_req_ids _draft_probs device drafter effective_drafter_max_model_len input_batch
      max_model_len num_spec_tokens
vllm.v1.sample.rejection_sampler
  apply_sampling_constraints(logits)
  expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to)
vllm.v1.worker.gpu_input_batch:InputBatch: num_tokens_no_spec req_id_to_index req_ids token_ids_cpu

[api, scheduler, v1, v2]
vllm.sampling_params:SamplingParams: eos_token_id extra_args ignore_eos max_tokens seed stop_token_ids
    structured_outputs temperature thinking_token_budget

[v2]
vllm.v1.worker.gpu.spec_decode:init_speculator(vllm_config, device, *, req_states)
vllm.v1.worker.gpu.model_runner: init_speculator
  GPUModelRunner.execute_model(scheduler_output, *, dummy_run)
  GPUModelRunner: lora_config lora_state req_states sample_tokens speculator
vllm.v1.worker.gpu.async_utils:AsyncOutput: model_runner_output
vllm.v1.outputs:ModelRunnerOutput: __dict__
vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs(req_ids)
vllm.v1.worker.gpu.spec_decode.speculator
  BaseSpeculator: capture init_cudagraph_manager propose
  BaseSpeculator.propose(input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states,
      num_sampled, num_rejected, last_sampled, next_prefill_tokens, temperature, seeds, *, dummy_run)
vllm.v1.worker.gpu.input_batch:InputBatch: idx_mapping num_computed_prefill_tokens_np num_reqs num_scheduled_tokens
    prefill_len_np req_ids
vllm.v1.worker.gpu.states:RequestState: all_token_ids last_sampled_tokens req_id_to_index total_len
vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor: gpu

[v1, v2, events]
vllm.v1.worker.worker_base:WorkerBase: __dict__ model_runner rank shutdown

[events]
vllm.v1.worker.gpu_worker
  Worker: _weight_update_is_draft finish_weight_update reset_weights shutdown sleep wake_up
  Worker.wake_up(tags)
vllm.v1.worker.gpu_model_runner:GPUModelRunner: get_model reload_weights
vllm.v1.worker.gpu.model_runner:GPUModelRunner: get_model reload_weights

[verifier v1]
vllm.v1.worker.gpu_model_runner:GPUModelRunner: rejection_sampler
vllm.v1.worker.gpu_input_batch:InputBatch: num_reqs
vllm.v1.sample.rejection_sampler
  RejectionSampler.forward(metadata)
  rejection_sample(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
      bonus_token_ids, sampling_metadata)
vllm.v1.sample.metadata:SamplingMetadata: all_greedy generators temperature

[verifier v2]
vllm.v1.worker.gpu.model_runner:GPUModelRunner: rejection_sampler
vllm.v1.worker.gpu.spec_decode.rejection_sampler
  RejectionSampler._verify(logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np)
  RejectionSampler: sampler
  rejection_sample(target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping,
      expanded_idx_mapping, expanded_local_pos, temperature, seed, num_speculative_steps)
vllm.v1.worker.gpu.sample.sampler:Sampler: sampling_states use_fp64_gumbel
vllm.v1.worker.gpu.sample.gumbel:gumbel_sample(logits, expanded_idx_mapping, temperature, seed, pos, *,
    apply_temperature, is_drafting, use_fp64)
vllm.v1.worker.gpu.sample.states:SamplingStates: seeds_set temperature
vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor: np

[recurrent]
vllm.v1.worker.gpu.model_runner
  GPUModelRunner: req_states vllm_config
  sort_batch_req_ids(num_tokens_per_req, draft_tokens)
vllm.v1.worker.gpu.states:RequestState: num_computed_prefill_tokens prefill_len req_id_to_index
vllm.v1.worker.gpu_model_runner
  GPUModelRunner._may_reorder_batch(scheduler_output)
  GPUModelRunner: input_batch num_spec_tokens reorder_batch_threshold
vllm.v1.worker.gpu_input_batch:InputBatch: num_computed_tokens_cpu num_prompt_tokens req_ids swap_states

[config, adaptive]
vllm.config.vllm:VllmConfig: compilation_config
vllm.config.compilation
  CUDAGraphMode: has_full_cudagraphs separate_routine
  CompilationConfig: cudagraph_capture_sizes cudagraph_mode max_cudagraph_capture_size post_init_cudagraph_sizes

[adaptive]
vllm.v1.worker.gpu.model_runner: maybe_create_adaptive_verification_manager resolve_adaptive_cudagraph_mode
  GPUModelRunner: adaptive_verification
vllm.v1.worker.gpu.spec_decode.adaptive_verification
  AdaptiveVerificationManager.__init__(req_states, query_start_loc, num_bonus_tokens, max_total_logits)
  AdaptiveVerificationManager: _batch_budget _confidence_probs _max_total_logits _stale_confidences _stale_idx
      add_request batches_to_profile compact_batch num_bonus_tokens num_speculative_steps reallocate_drafts
      req_states
  AdaptiveVerificationManager.batches_to_profile(capture_sizes)
  AdaptiveVerificationManager.set_initial_cost_curves(samples)
  AdaptiveVerificationManager.get_num_tokens(num_tokens_per_req, draft_tokens)
  AdaptiveVerificationManager.record_confidences(confidence_probs, input_batch)
  maybe_create_adaptive_verification_manager(*, attn_groups, enable_adaptive_verification, max_total_logits,
      num_bonus_tokens, query_start_loc, req_states, target_layer_names, vllm_config)
  resolve_adaptive_cudagraph_mode(mode)
vllm.v1.worker.gpu.async_utils:StepTimingSample: forward_ms num_reqs num_target_tokens
vllm.v1.worker.gpu.states:RequestState: max_model_len req_id_to_index
vllm.v1.worker.gpu.attn_utils:get_query_lens_mismatch_unsupported_backend(attn_groups, checked_layer_names)

[api]
vllm.exceptions:VLLMValidationError
vllm.v1.engine.input_processor
  InputProcessor.__init__(vllm_config)
  InputProcessor.process_inputs(request_id, prompt, params)
vllm.v1.engine.async_llm
  AsyncLLM.__init__
  AsyncLLM: input_processor
  AsyncLLM.add_request(request_id, prompt, params)
vllm.sampling_params
  SamplingParams._validate_spec_decode(speculative_config)
  SamplingParams: logit_bias n
vllm.v1.worker.gpu.sample.logit_bias:MAX_NUM_LOGIT_BIAS_TOKENS

[http]
vllm.entrypoints.generate.base.serving
  GenerateBaseServing: input_processor
  GenerateBaseServing._check_model(request)
vllm.v1.engine.async_llm:AsyncLLM: generate
vllm.outputs
  CompletionOutput: index token_ids
  RequestOutput: outputs request_id
vllm.entrypoints.serve.engine.protocol
  CompletionTokenUsageInfo
  UsageInfo: completion_tokens_details
vllm.entrypoints.serve.engine.serving:BaseServing.create_error_response(message, err_type, status_code)
vllm.entrypoints.openai.completion.protocol:CompletionRequest: to_sampling_params vllm_xargs
vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest: to_sampling_params vllm_xargs

[routes, metrics]
vllm.v1.engine.core_client
  AsyncMPClient._call_utility_async(method, *, args, engine)
  AsyncMPClient: core_engines

[metrics]
vllm.v1.engine.core_client:EngineCoreClient.make_async_mp_client(vllm_config)

[routes]
vllm.v1.engine.async_llm:AsyncLLM: engine_core vllm_config
vllm.plugins.endpoint_plugins.interface
  EndpointPlugin.attach_router(app)
  EndpointPlugin.init_state(engine_client, state, args)
vllm.plugins:load_endpoint_plugins(supported_tasks)
vllm.envs: VLLM_API_KEY VLLM_PLUGINS
vllm.entrypoints.launchers.cli_args:FrontendArgs: api_key <= 0.32
vllm.entrypoints.common.cli_args:FrontendArgs: api_key >= 0.33

[config, routes]
vllm: __version__

[streams]
vllm.parser.parser_manager:ParserManager: get_parser
vllm.parser.abstract_parser
  Parser: model_tokenizer
  Parser.parse_delta(delta_text, delta_token_ids, request, prompt_token_ids, *, finished)
vllm.entrypoints.generate.base.protocol
  DeltaFunctionCall: arguments name
  DeltaMessage: content reasoning tool_calls
  DeltaToolCall: function id index

[cli]
vllm.engine.arg_utils
  AsyncEngineArgs: from_cli_args
  AsyncEngineArgs.create_engine_config(*, usage_context)
vllm.entrypoints.cli.serve
  ServeSubcommand: validate
  ServeSubcommand.subparser_init(subparsers)
vllm.usage.usage_lib:UsageContext: OPENAI_API_SERVER
vllm.plugins:load_general_plugins
vllm.utils.argparse_utils:FlexibleArgumentParser: parse_args
"""
"""Every symbol of vLLM that this adapter patches, subclasses, calls or reads; see `specplug.seams.seam.table`."""

SEAMS = (*DIFFERENCES.values(), *table(_TABLE))


def installed_version() -> str:
    """Return this process's vLLM version, "dev" if vLLM does not know its own."""
    import vllm

    return str(vllm.__version__)


_support = Support(VERSIONS, SEAMS, who="specplug_vllm", installed=installed_version, optional=OPTIONAL)

require = _support.require
"""Raise for a vLLM that is too old, or whose seams for a part of the adapter have moved."""

available = _support.available
"""Return whether an optional part of the adapter can be used; log once what is off if it cannot."""

moved = _support.moved
"""Return what has moved among the seams that one part of the adapter uses."""


def ranks_agree_to_skip_drafts() -> bool:
    """Return whether data-parallel ranks skip the drafts of a step if the schedulers of all of them allow it."""
    return _has("skip_drafts")


@functools.cache
def _has(difference: str) -> bool:
    return not any(problems(DIFFERENCES[difference], imported))
