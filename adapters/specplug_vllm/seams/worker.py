"""Seams of vLLM that the workers use: both runners, verification and engine events."""

from __future__ import annotations

from specplug.seams.seam import Seam, seam

_WORKER = (
    seam("vllm.tokenizers:cached_tokenizer_from_config", "v1", "v2", takes="model_config"),
    seam("vllm.distributed:get_tp_group", "v1", "v2"),
    seam(
        "vllm.distributed.parallel_state:GroupCoordinator",
        "v1",
        "v2",
        holds="device_communicator rank_in_group world_size",
    ),
    seam("vllm.distributed.parallel_state:GroupCoordinator.broadcast", "v1", "v2", takes="input_ src"),
    seam(
        "vllm.distributed.device_communicators.base_device_communicator:DeviceCommunicatorBase.broadcast",
        "v1",
        "v2",
        takes="tensor src",
    ),
    seam("vllm.distributed.device_communicators.cuda_communicator:CudaCommunicator", "nccl", holds="pynccl_comm"),
    seam("vllm.distributed.device_communicators.pynccl:PyNcclCommunicator", "nccl", holds="disabled"),
    seam(
        "vllm.v1.core.sched.output:SchedulerOutput",
        "scheduler",
        "v1",
        "v2",
        holds="__dict__ finished_req_ids num_scheduled_tokens num_spec_tokens_to_schedule preempted_req_ids "
        "scheduled_cached_reqs scheduled_new_reqs scheduled_spec_decode_tokens",
    ),
    seam("vllm.v1.core.sched.output:CachedRequestData", "scheduler", holds="num_computed_tokens"),
    seam("vllm.v1.core.sched.output:CachedRequestData", "v1", holds="resumed_req_ids"),
    seam(
        "vllm.v1.core.sched.output:NewRequestData",
        "v1",
        "v2",
        holds="lora_request mm_features prefill_token_ids prompt_embeds prompt_token_ids req_id sampling_params",
    ),
    seam(
        "vllm.sampling_params:SamplingParams",
        "api",
        "scheduler",
        "v1",
        "v2",
        holds="eos_token_id extra_args ignore_eos max_tokens seed stop_token_ids structured_outputs temperature "
        "thinking_token_budget",
    ),
    seam("vllm.v1.worker.gpu_worker:Worker.determine_available_memory", "v1", "v2"),
    seam("vllm.v1.worker.worker_base:WorkerBase", "v1", "v2", holds="cache_config"),
    seam("vllm.config.cache:CacheConfig", "v1", "v2", holds="kv_cache_memory_bytes"),
    seam("vllm.lora.request:LoRARequest", "v1", "v2", holds="lora_int_id"),
    seam("vllm.multimodal.inputs:MultiModalFeatureSpec", "v1", "v2", holds="mm_position"),
    seam("vllm.multimodal.inputs:PlaceholderRange", "v1", "v2", holds="length offset"),
)

_V1 = (
    seam("vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer", "v1", takes="vllm_config"),
    seam("vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model", "v1", takes="scheduler_output"),
    seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "v1",
        holds="_draft_prob_req_ids _draft_probs device drafter effective_drafter_max_model_len input_batch "
        "max_model_len num_spec_tokens",
    ),
    seam("vllm.v1.sample.rejection_sampler:apply_sampling_constraints", "v1", takes="logits"),
    seam(
        "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
        "v1",
        takes="x cu_num_tokens num_tokens replace_from replace_to",
    ),
    seam(
        "vllm.v1.worker.gpu_input_batch:InputBatch",
        "v1",
        holds="num_tokens_no_spec req_id_to_index req_ids token_ids_cpu",
    ),
)

_V2 = (
    seam("vllm.v1.worker.gpu.spec_decode:init_speculator", "v2", takes="vllm_config device", named="req_states"),
    seam("vllm.v1.worker.gpu.model_runner", "v2", holds="init_speculator"),
    seam(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model",
        "v2",
        takes="scheduler_output",
        named="dummy_run",
    ),
    seam(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner",
        "v2",
        holds="lora_config lora_state req_states sample_tokens speculator",
    ),
    seam("vllm.v1.worker.gpu.async_utils:AsyncOutput", "v2", holds="model_runner_output"),
    seam("vllm.v1.outputs:ModelRunnerOutput", "v2", holds="__dict__"),
    seam("vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs", "v2", takes="req_ids"),
    seam(
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator",
        "v2",
        holds="capture init_cudagraph_manager propose",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.propose",
        "v2",
        takes="input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
        "last_sampled next_prefill_tokens temperature seeds",
        named="dummy_run",
    ),
    seam(
        "vllm.v1.worker.gpu.input_batch:InputBatch",
        "v2",
        holds="idx_mapping num_computed_prefill_tokens_np num_reqs num_scheduled_tokens prefill_len_np req_ids",
    ),
    seam(
        "vllm.v1.worker.gpu.states:RequestState",
        "v2",
        holds="all_token_ids last_sampled_tokens req_id_to_index total_len",
    ),
    seam("vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor", "v2", holds="gpu"),
)

_EVENTS = (
    seam("vllm.v1.worker.worker_base:WorkerBase", "v1", "v2", "events", holds="__dict__ model_runner rank shutdown"),
    seam(
        "vllm.v1.worker.gpu_worker:Worker",
        "events",
        holds="_weight_update_is_draft finish_weight_update reset_weights shutdown sleep wake_up",
    ),
    seam("vllm.v1.worker.gpu_worker:Worker.wake_up", "events", takes="tags"),
    seam("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "events", holds="get_model reload_weights"),
    seam("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "events", holds="get_model reload_weights"),
)

_VERIFIERS = (
    seam("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "verifier v1", holds="rejection_sampler"),
    seam("vllm.v1.worker.gpu_input_batch:InputBatch", "verifier v1", holds="num_reqs"),
    seam("vllm.v1.sample.rejection_sampler:RejectionSampler.forward", "verifier v1", takes="metadata"),
    seam(
        "vllm.v1.sample.rejection_sampler:rejection_sample",
        "verifier v1",
        takes="draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens draft_probs target_logits "
        "bonus_token_ids sampling_metadata",
    ),
    seam("vllm.v1.sample.metadata:SamplingMetadata", "verifier v1", holds="all_greedy generators temperature"),
    seam("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "verifier v2", holds="rejection_sampler"),
    seam(
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler._verify",
        "verifier v2",
        takes="logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np",
    ),
    seam("vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler", "verifier v2", holds="sampler"),
    seam(
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler:rejection_sample",
        "verifier v2",
        takes="target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping "
        "expanded_local_pos temperature seed num_speculative_steps",
    ),
    seam("vllm.v1.worker.gpu.sample.sampler:Sampler", "verifier v2", holds="sampling_states use_fp64_gumbel"),
    seam(
        "vllm.v1.worker.gpu.sample.gumbel:gumbel_sample",
        "verifier v2",
        takes="logits expanded_idx_mapping temperature seed pos",
        named="apply_temperature is_drafting use_fp64",
    ),
    seam("vllm.v1.worker.gpu.sample.states:SamplingStates", "verifier v2", holds="temperature seeds_set"),
    seam("vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor", "verifier v2", holds="np"),
)

_ENGINE_DRAFTS = (
    seam(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose",
        "engine drafts",
        named="num_speculative_tokens",
    ),
    seam(
        "vllm.v1.spec_decode.ngram_proposer:NgramProposer.propose",
        "engine drafts",
        takes="num_speculative_tokens",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator:StandaloneARSpeculator.propose",
        "engine drafts",
        takes="input_batch",
        named="num_speculative_tokens",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator:StandaloneARSpeculator",
        "engine drafts",
        holds="draft_tokens num_speculative_steps",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.propose",
        "engine drafts",
        named="num_speculative_tokens",
    ),
)

_RECURRENT = (
    seam("vllm.v1.worker.gpu.model_runner:sort_batch_req_ids", "recurrent", takes="num_tokens_per_req draft_tokens"),
    seam("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "recurrent", holds="req_states vllm_config"),
    seam(
        "vllm.v1.worker.gpu.states:RequestState",
        "recurrent",
        holds="num_computed_prefill_tokens prefill_len req_id_to_index",
    ),
    seam("vllm.v1.worker.gpu_model_runner:GPUModelRunner._may_reorder_batch", "recurrent", takes="scheduler_output"),
    seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "recurrent",
        holds="input_batch num_spec_tokens reorder_batch_threshold",
    ),
    seam(
        "vllm.v1.worker.gpu_input_batch:InputBatch",
        "recurrent",
        holds="num_computed_tokens_cpu num_prompt_tokens req_ids swap_states",
    ),
)

_ADAPTIVE = (
    seam("vllm.config.speculative:SpeculativeConfig", "config", holds="enable_adaptive_verification"),
    seam("vllm.config.vllm:VllmConfig._validate_adaptive_verification", "config"),
    seam("vllm.config.vllm:VllmConfig", "config", "adaptive", holds="compilation_config"),
    seam(
        "vllm.config.compilation:CompilationConfig",
        "config",
        "adaptive",
        holds="cudagraph_capture_sizes cudagraph_mode max_cudagraph_capture_size post_init_cudagraph_sizes",
    ),
    seam("vllm.config.compilation:CUDAGraphMode", "config", "adaptive", holds="has_full_cudagraphs separate_routine"),
    seam(
        "vllm.v1.worker.gpu.model_runner",
        "adaptive",
        holds="maybe_create_adaptive_verification_manager resolve_adaptive_cudagraph_mode",
    ),
    seam("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "adaptive", holds="adaptive_verification"),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:maybe_create_adaptive_verification_manager",
        "adaptive",
        named="attn_groups enable_adaptive_verification max_total_logits num_bonus_tokens query_start_loc req_states "
        "target_layer_names vllm_config",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:resolve_adaptive_cudagraph_mode",
        "adaptive",
        takes="mode",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.__init__",
        "adaptive",
        takes="req_states query_start_loc num_bonus_tokens max_total_logits",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager",
        "adaptive",
        holds="_batch_budget _confidence_probs _max_total_logits _stale_confidences _stale_idx add_request "
        "batches_to_profile compact_batch num_bonus_tokens num_speculative_steps reallocate_drafts req_states",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.batches_to_profile",
        "adaptive",
        takes="capture_sizes",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.set_initial_cost_curves",
        "adaptive",
        takes="samples",
    ),
    seam("vllm.v1.worker.gpu.async_utils:StepTimingSample", "adaptive", holds="forward_ms num_reqs num_target_tokens"),
    seam("vllm.v1.worker.gpu.states:RequestState", "adaptive", holds="max_model_len req_id_to_index"),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.get_num_tokens",
        "adaptive",
        takes="num_tokens_per_req draft_tokens",
    ),
    seam(
        "vllm.v1.worker.gpu.spec_decode.adaptive_verification:AdaptiveVerificationManager.record_confidences",
        "adaptive",
        takes="confidence_probs input_batch",
    ),
    seam(
        "vllm.v1.worker.gpu.attn_utils:get_query_lens_mismatch_unsupported_backend",
        "adaptive",
        takes="attn_groups checked_layer_names",
    ),
)

WORKER: tuple[Seam, ...] = (*_WORKER, *_V1, *_V2, *_EVENTS, *_VERIFIERS, *_ENGINE_DRAFTS, *_RECURRENT, *_ADAPTIVE)
