"""Checks of vLLM's version and private names, used by the rest of the adapter, and the table of these names.

Each process probes the names of a part of the adapter before it uses that part.  If a seam has moved, the server does
not start; if only an optional part uses the seam, that part is switched off with a warning.  Tests and ``specplug
doctor`` probe the whole table.
"""

from __future__ import annotations

from specplug.seams.seam import table
from specplug.seams.support import Range, Support

OPTIONAL = {
    "events": "proposers learn nothing of new weights, sleep and waking up",
    "routes": "the routes below /specplug",
    "streams": "parsing streamed reasoning and tool calls token by token; vLLM parses several tokens at once",
    "metrics": "specplug's metrics on /metrics",
    "status": "the status of a server and orders to it",
    "timing": "timing steps at start; policies learn what steps cost while serving",
    "nccl": "the communicator that is warm already: ranks send drafts through another one",
}
"""Parts that correct serving does not need, and what is off if their seams have moved."""

VERSIONS = Range(engine="vLLM", oldest=(0, 32), newest=(0, 33), compared=frozenset({(0, 33)}))  # it has no CPU build

SEAMS = table("""
[config]
vllm.engine.arg_utils:!EngineArgs.create_engine_config
vllm.v1.executor.abstract:Executor: !__init__
vllm.config.vllm
# Later versions keep async scheduling on with every method on V2.
  NgramGPUTypes <= 0.32
  VllmConfig: !__post_init__ !_get_v2_model_runner_unsupported_features !_set_cudagraph_sizes
      !_validate_adaptive_verification use_v2_model_runner watermark_config
vllm.config.speculative:SpeculativeConfig: max_num_new_slots_for_drafting num_speculative_tokens
    num_speculative_tokens_per_batch_size
vllm.config.scheduler:SchedulerConfig: scheduler_cls
vllm.config.model:ModelConfig: logits_processors

[scheduler]
vllm.v1.core.sched.scheduler
  Scheduler: dynamic_sd_lookup num_spec_tokens reset_prefix_cache schedule
  Scheduler._update_after_schedule(scheduler_output)
  Scheduler.update_from_output(scheduler_output, model_runner_output)
  Scheduler.make_spec_decoding_stats(*, num_accepted_tokens, num_draft_tokens, num_invalid_spec_tokens, request_id)
  Scheduler.update_draft_token_ids(draft_token_ids)
  Scheduler._free_request(request)
  Scheduler._handle_stopped_request(request)
vllm.v1.core.sched.async_scheduler:AsyncScheduler: _update_after_schedule make_spec_decoding_stats schedule
vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar: matcher
vllm.v1.structured_output.backend_guidance:GuidanceGrammar: ll_matcher
vllm.v1.structured_output.backend_types:StructuredOutputGrammar: accept_tokens fill_bitmask is_terminated rollback
vllm.v1.kv_cache_interface:MambaSpec: mamba_type
vllm.v1.request:Request.__init__(*, resumable)

[scheduler, v1, v2]
vllm.tokenizers:cached_tokenizer_from_config(model_config)
vllm.v1.core.sched.output:SchedulerOutput: __dict__ num_spec_tokens_to_schedule scheduled_spec_decode_tokens

[engine drafts]
vllm.v1.core.sched.output:SchedulerOutput: skip_drafts >= 0.33
vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose(*, num_speculative_tokens)
vllm.v1.spec_decode.ngram_proposer:NgramProposer.propose(num_speculative_tokens)
vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator
  StandaloneARSpeculator.propose(input_batch, *, num_speculative_tokens)
  StandaloneARSpeculator: draft_tokens num_speculative_steps
vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.propose(*,
    num_speculative_tokens)

[extended v1, extended v2]
vllm.v1.worker.worker_base:WorkerWrapperBase: !init_device vllm_config

[extended v1]
vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose(*, num_speculative_tokens)
vllm.v1.worker.gpu_model_runner
  GPUModelRunner: _draft_probs _draft_token_ids drafter !sample_tokens
vllm.v1.outputs:ModelRunnerOutput: sampled_token_ids

[extended v2]
vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator: draft_logits draft_tokens num_speculative_steps
vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator:StandaloneARSpeculator.propose(input_batch, *,
    num_speculative_tokens, dummy_run)
vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.propose(input_batch, *,
    num_speculative_tokens, dummy_run)

[status]
vllm.v1.engine.core:EngineCore: model_executor scheduler
vllm.v1.executor.abstract:Executor.collective_rpc(method)

[timing]
vllm.v1.engine.core
  EngineCore: !__init__ batch_queue model_executor post_step request_block_hasher scheduler step_fn
  EngineCoreProc: !run_busy_loop
vllm.v1.core.sched.scheduler:Scheduler: dynamic_sd_lookup finish_requests has_requests num_spec_tokens running
vllm.v1.request
  Request.__init__(request_id, prompt_token_ids, sampling_params, pooling_params, *, block_hasher)
  Request: is_prefill_chunk num_computed_tokens spec_token_ids

[v1, v2]
vllm.distributed:get_tp_group
vllm.distributed.parallel_state:GroupCoordinator.broadcast(input_, src)
vllm.distributed.device_communicators.base_device_communicator:DeviceCommunicatorBase.broadcast(tensor, src)
vllm.v1.worker.gpu_worker:Worker: !determine_available_memory
vllm.v1.worker.worker_base:WorkerBase: __dict__ model_runner shutdown

[nccl]
vllm.distributed.device_communicators.cuda_communicator:CudaCommunicator: pynccl_comm
vllm.distributed.device_communicators.pynccl:PyNcclCommunicator: disabled

[v1]
vllm.v1.core.sched.output:CachedRequestData: resumed_req_ids
vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer(vllm_config)
vllm.v1.worker.gpu_model_runner
  !GPUModelRunner.execute_model(scheduler_output)
  GPUModelRunner: _draft_prob_req_ids _draft_probs drafter effective_drafter_max_model_len
vllm.v1.sample.rejection_sampler
  !RejectionSampler.forward(metadata, draft_probs, logits, sampling_metadata)
  RejectionSampler: sampler
  !apply_sampling_constraints(logits)
  !expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to)
  !rejection_sample(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
      bonus_token_ids, sampling_metadata)

[thinking budgets]
vllm.v1.sample.thinking_budget_state
  ThinkingBudgetStateHolder: _state
  !ThinkingBudgetStateHolder.update_state(output_token_ids)

[token logprobs v1]
vllm.v1.sample.metadata:SamplingMetadata: logprob_token_ids max_num_logprobs
vllm.v1.spec_decode.metadata:SpecDecodeMetadata: num_draft_tokens
vllm.v1.sample.rejection_sampler:!RejectionSampler.forward(metadata, draft_probs, logits, sampling_metadata)
vllm.v1.sample.sampler:!Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)

[token logprobs v2]
vllm.v1.worker.gpu.sample.sampler
  Sampler: logprob_token_ids_state
  !Sampler.get_logprobs_dims(idx_mapping_np)
vllm.v1.worker.gpu.sample.logprob:LogprobTokenIdsState.max_num_token_ids(idx_mapping_np)
vllm.v1.worker.gpu.spec_decode.rejection_sampler
  !RejectionSampler.__call__(logits, input_batch)
  !RejectionSampler._verify(logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np,
      expanded_idx_mapping)
  !RejectionSampler._get_logprobs_tensors(sampled, num_sampled, logits, cu_num_logits, cu_num_logits_np,
      max_num_logprobs)
  !compute_topk_scores(logits, num_logprobs, sampled_token_ids, cu_num_logits, logprob_token_ids_state,
      expanded_idx_mapping, max_per_req_token_ids)

[v2]
vllm.v1.worker.gpu.spec_decode:!init_speculator(vllm_config, device, *, req_states)
vllm.v1.worker.gpu.model_runner
  !init_speculator
  !GPUModelRunner.execute_model(scheduler_output, *, dummy_run)
  GPUModelRunner: !sample_tokens speculator
vllm.v1.worker.gpu.async_utils:AsyncOutput: model_runner_output
vllm.v1.outputs:ModelRunnerOutput: __dict__
vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs(req_ids)
vllm.v1.worker.gpu.spec_decode.speculator
  BaseSpeculator: capture init_cudagraph_manager
  BaseSpeculator.propose(input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states,
      num_sampled, num_rejected, last_sampled, next_prefill_tokens, temperature, seeds, *, dummy_run)

[events]
vllm.v1.worker.gpu_worker
  Worker: _weight_update_is_draft !finish_weight_update !reset_weights !shutdown !sleep
  !Worker.wake_up(tags)
vllm.v1.worker.gpu_model_runner:GPUModelRunner: get_model !reload_weights
vllm.v1.worker.gpu.model_runner:GPUModelRunner: get_model !reload_weights

[verifier v1]
vllm.v1.sample.rejection_sampler:!RejectionSampler.forward(metadata)

[verifier v2]
vllm.v1.worker.gpu.spec_decode.rejection_sampler
  !RejectionSampler._verify(logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np)
  !rejection_sample(target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping,
      expanded_idx_mapping, expanded_local_pos, temperature, seed, num_speculative_steps)
vllm.v1.worker.gpu.sample.gumbel:gumbel_sample(logits, expanded_idx_mapping, temperature, seed, pos, *,
    apply_temperature, is_drafting, use_fp64)

[recurrent]
vllm.v1.worker.gpu.model_runner:sort_batch_req_ids(num_tokens_per_req, draft_tokens)
vllm.v1.worker.gpu_model_runner
  GPUModelRunner._may_reorder_batch(scheduler_output)
  GPUModelRunner: reorder_batch_threshold
vllm.v1.worker.gpu_input_batch:InputBatch: swap_states

[config, adaptive]
vllm.config.compilation
  CUDAGraphMode: has_full_cudagraphs separate_routine
  CompilationConfig: post_init_cudagraph_sizes

[adaptive]
vllm.v1.worker.gpu.model_runner
  !maybe_create_adaptive_verification_manager
  !resolve_adaptive_cudagraph_mode
  GPUModelRunner: adaptive_verification
vllm.v1.worker.gpu.spec_decode.adaptive_verification
  AdaptiveVerificationManager.__init__(req_states, query_start_loc, num_bonus_tokens, max_total_logits)
  AdaptiveVerificationManager: _batch_budget _confidence_probs _max_total_logits _stale_confidences _stale_idx
      add_request compact_batch reallocate_drafts
  AdaptiveVerificationManager.batches_to_profile(capture_sizes)
  AdaptiveVerificationManager.set_initial_cost_curves(samples)
  AdaptiveVerificationManager.get_num_tokens(num_tokens_per_req, draft_tokens)
  AdaptiveVerificationManager.record_confidences(confidence_probs, input_batch)
  maybe_create_adaptive_verification_manager(*, attn_groups, enable_adaptive_verification, max_total_logits,
      num_bonus_tokens, query_start_loc, req_states, target_layer_names, vllm_config)
  resolve_adaptive_cudagraph_mode(mode)
vllm.v1.worker.gpu.attn_utils:get_query_lens_mismatch_unsupported_backend(attn_groups, checked_layer_names)

[api]
vllm.exceptions:VLLMValidationError
vllm.v1.engine.input_processor
  !InputProcessor.__init__(vllm_config)
  !InputProcessor.process_inputs(request_id, prompt, params)
vllm.v1.engine.async_llm
  AsyncLLM: !__init__ input_processor
  !AsyncLLM.add_request(request_id, prompt, params)
vllm.sampling_params
  !SamplingParams._validate_spec_decode(speculative_config)
  SamplingParams: extra_args n

[http]
vllm.entrypoints.generate.base.serving
  GenerateBaseServing: input_processor
  !GenerateBaseServing._check_model(request)
vllm.v1.engine.async_llm:AsyncLLM: !generate
vllm.entrypoints.serve.engine.protocol
  CompletionTokenUsageInfo
  UsageInfo: !__init__ completion_tokens_details
vllm.entrypoints.serve.engine.serving:BaseServing.create_error_response(message, err_type, status_code)
vllm.entrypoints.openai.completion.protocol:CompletionRequest: to_sampling_params vllm_xargs
vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest: to_sampling_params vllm_xargs

[routes, metrics]
vllm.v1.engine.core_client
  AsyncMPClient._call_utility_async(method, *, args, engine)
  AsyncMPClient: core_engines

[metrics]
vllm.v1.engine.core_client:!EngineCoreClient.make_async_mp_client(vllm_config)

[routes]
vllm.plugins.endpoint_plugins.interface
  EndpointPlugin.attach_router(app)
  EndpointPlugin.init_state(engine_client, state, args)
vllm.plugins:!load_endpoint_plugins(supported_tasks)

[streams]
vllm.entrypoints.openai.responses.streaming_events:!split_delta(delta)
vllm.parser.parser_manager:ParserManager: !get_parser
vllm.parser.abstract_parser
  Parser: model_tokenizer
  Parser.parse_delta(delta_text, delta_token_ids, request, prompt_token_ids, *, finished)
vllm.entrypoints.generate.base.protocol
  DeltaMessage: content reasoning tool_calls
  DeltaToolCall: function id index
""")
"""What of vLLM this adapter relies on, by the part of the adapter; see `specplug.seams.seam`."""


def installed_version() -> str:
    """Return this process's vLLM version, "dev" if vLLM does not know its own."""
    import vllm

    return str(vllm.__version__)


support = Support(VERSIONS, SEAMS, who="specplug_vllm", installed=installed_version, optional=OPTIONAL)
require = support.require
available = support.available
moved_seams = support.moved_seams


def ranks_agree_to_skip_drafts() -> bool:
    """Return whether data-parallel ranks skip the drafts of a step if the schedulers of all of them allow it (0.33)."""
    from vllm.v1.worker.gpu import dp_utils

    return hasattr(dp_utils.DPSyncState, "skip_drafts")
