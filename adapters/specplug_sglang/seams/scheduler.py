"""Seams of SGLang that the scheduler's process uses: requests, batches, verification, and status."""

from __future__ import annotations

from specplug.seams.seam import Seam, seam

_REQUESTS = (
    seam(
        "sglang.srt.managers.schedule_batch:Req",
        "worker",
        holds="cache_salt custom_logit_processor eos_token_ids extend_end extra_key finished finished_len "
        "finished_reason grammar input_embeds kv lora_id multimodal_inputs origin_input_ids origin_input_ids_unpadded "
        "output_ids output_ids_through_stop positional_embed_overrides reasoning_tokens retraction_count rid "
        "sampling_params to_finish tokenizer",
    ),
    seam("sglang.srt.managers.schedule_batch:Req.update_finish_state", "worker", takes="new_accepted_len"),
    seam("sglang.srt.managers.schedule_batch:ReqKvInfo", "worker", holds="kv_allocated_len req_pool_idx"),
    seam("sglang.srt.managers.schedule_batch:FINISH_ABORT", "worker"),
    seam("sglang.srt.managers.schedule_batch:FINISH_MATCHED_STR", "worker", holds="matched"),
    seam("sglang.srt.managers.schedule_batch:MultimodalInputs", "worker", holds="mm_items"),
    seam("sglang.srt.managers.schedule_batch:MultimodalDataItem", "worker", holds="offsets"),
    seam(
        "sglang.srt.sampling.sampling_params:SamplingParams",
        "worker",
        holds="custom_params frequency_penalty ignore_eos max_new_tokens min_new_tokens min_p no_stop_trim "
        "presence_penalty repetition_penalty skip_special_tokens stop_regex_strs stop_strs stop_token_ids temperature "
        "top_k",
    ),
)

_BATCHES = (
    seam(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        "worker",
        holds="forward_mode has_grammar input_ids out_cache_loc req_pool_indices req_to_token_pool reqs return_logprob "
        "sampling_info seq_lens seq_lens_cpu seq_lens_sum spec_info",
    ),
    seam(
        "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo",
        "worker",
        holds="acc_additive_penalties acc_scaling_penalties has_custom_logit_processor is_all_greedy "
        "need_min_p_sampling sampling_seed",
    ),
    seam("sglang.srt.model_executor.forward_batch_info:ForwardMode", "worker", holds="DECODE TARGET_VERIFY is_decode"),
    seam("sglang.srt.mem_cache.memory_pool:ReqToTokenPool", "worker", holds="req_to_token"),
    seam("sglang.srt.mem_cache.kv_cache_configurator:get_req_to_token_extra_context_len", "worker"),
    seam(
        "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator._profile_available_bytes",
        "worker",
        takes="pre_model_load_memory",
    ),
    seam("sglang.srt.mem_cache.allocation_sizing:get_alloc_reserve_per_decode", "worker"),
    seam(
        "sglang.srt.managers.utils:GenerationBatchResult",
        "worker",
        holds="accept_lens can_run_cuda_graph cap_lens logits_output new_seq_lens next_draft_input next_token_ids "
        "speculative_num_draft_tokens speculative_output_stride",
    ),
    seam("sglang.srt.managers.overlap_utils:FutureMap.stash", "worker", takes="future_indices payload"),
    seam("sglang.srt.managers.overlap_utils:FutureMap._resolve_spec_extras", "worker", takes="batch"),
    seam(
        "sglang.srt.managers.overlap_utils:FutureMap.__init__",
        "worker",
        takes="device spec_algo req_to_token_pool needs_cpu_seq_lens needs_confidence_relay",
    ),
)

_TARGET = (
    seam("sglang.srt.speculative.base_spec_worker:BaseSpecWorker.__init__", "worker"),
    seam(
        "sglang.srt.speculative.base_spec_worker:BaseSpecWorker",
        "worker",
        holds="__dict__ _additional_graph_memory_usage _additional_graph_time_usage clear_cache_pool draft_worker "
        "spec_v2_attn_backends target_worker",
    ),
    seam("sglang.srt.speculative.base_spec_worker:BaseSpecWorker.init_attention_backends", "worker"),
    seam(
        "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.on_verify_complete_cpu",
        "worker",
        takes="num_correct_drafts_per_req batch_size",
    ),
    seam(
        "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.note_request_finished",
        "worker",
        takes="rid natural_stop",
    ),
    seam("sglang.srt.managers.tp_worker:TpModelWorker", "worker", holds="model_runner tokenizer"),
    seam(
        "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation",
        "worker",
        takes="batch",
        named="is_verify",
    ),
    seam("sglang.srt.managers.tp_worker:TpModelWorker.get_memory_pool", "worker"),
    seam(
        "sglang.srt.model_executor.model_runner:ModelRunner",
        "worker",
        holds="attn_backend decode_cuda_graph_runner device gpu_id model_config sampler spec_algorithm watermark_state",
    ),
    seam("sglang.srt.model_executor.model_runner:ModelRunner.max_decode_logits_rows", "worker"),
    seam(
        "sglang.srt.layers.attention.base_attn_backend:AttentionBackend",
        "worker",
        holds="needs_cpu_seq_lens verify_mask",
    ),
    seam("sglang.srt.layers.attention.verify_mask:VerifyMask", "worker", holds="buffer is_read max_bs mode"),
    seam(
        "sglang.srt.layers.attention.hybrid_attn_backend:HybridAttnBackend",
        "worker",
        holds="decode_backend prefill_backend spec_attn_is_decode",
    ),
    seam(
        "sglang.srt.layers.attention.hybrid_linear_attn_backend:HybridLinearAttnBackend",
        "worker",
        holds="full_attn_backend linear_attn_backend",
    ),
    seam("sglang.srt.model_executor.model_runner:ModelRunner._get_attention_backend", "worker"),
    seam(
        "sglang.srt.layers.attention.base_attn_backend:AttentionBackend.init_cuda_graph_state",
        "worker",
        takes="max_bs max_num_tokens",
    ),
    seam(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.__init__",
        "worker",
        takes="model_runner",
        named="attn_backend speculative_num_draft_tokens speculative_num_steps",
    ),
    seam(
        "sglang.srt.layers.attention.hybrid_linear_attn_backend:MambaAttnBackendBase",
        "worker",
        holds="accept_lens_pool",
    ),
    seam(
        "sglang.srt.configs.model_config:ModelConfig",
        "api",
        "worker",
        holds="context_len hf_config model_path vocab_size",
    ),
    seam("sglang.srt.configs.model_config:ModelConfig", "worker", holds="model_is_mrope"),
    seam("sglang.srt.arg_groups.model_override_base:mamba_extra_buffer_of", "worker", takes="cfg"),
    seam("sglang.srt.speculative.spec_info:SpeculativeAlgorithm", "worker", holds="NONE"),
    seam("sglang.srt.runtime_context:get_context", "worker"),
    seam("sglang.srt.runtime_context:RuntimeContext.override", "worker", takes="source fields"),
    seam("sglang.srt.runtime_context:get_spec", "worker", "status"),
    seam("sglang.srt.runtime_context:get_exec", "worker"),
    seam("sglang.srt.model_executor.cuda_graph_config:CudaGraphConfig", "worker", holds="decode"),
    seam("sglang.srt.model_executor.cuda_graph_config:PhaseConfig", "worker", holds="bs"),
    seam("sglang.srt.runtime_context:get_parallel", "worker"),
    seam("sglang.srt.runtime_context:SpawnRanks", "worker", holds="dp_rank"),
    seam("sglang.srt.arg_groups.fields.parallel:Parallel", "worker", holds="tp_group"),
    seam(
        "sglang.srt.distributed.parallel_state:GroupCoordinator",
        "worker",
        holds="cpu_group rank_in_group ranks world_size",
    ),
    seam("sglang.srt.distributed.parallel_state:GroupCoordinator.broadcast", "worker", takes="input_ src"),
)

_VERIFICATION = (
    seam(
        "sglang.srt.speculative.ngram_info:NgramVerifyInput.__init__",
        "worker",
        named="accept_lens accept_tokens custom_mask draft_token draft_token_num new_seq_lens positions retrieve_index "
        "retrieve_next_sibling retrieve_next_token",
    ),
    seam(
        "sglang.srt.speculative.ngram_info:NgramVerifyInput",
        "worker",
        holds="draft_token draft_token_num positions retrieve_index retrieve_next_sibling "
        "retrieve_next_token tree_topk",
    ),
    seam(
        "sglang.srt.speculative.eagle_utils:verify_tree_greedy_func",
        "worker",
        named="accept_index accept_token_num candidates predicts retrieve_index retrieve_next_sibling "
        "retrieve_next_token target_predict topk",
    ),
    seam(
        "sglang.srt.speculative.eagle_utils:eagle_sample",
        "worker",
        takes="verify_input batch logits_output grammar_mask",
        named="watermark_state",
    ),
    seam(
        "sglang.kernels.ops.speculative.sampling:tree_speculative_sampling_target_only",
        "worker",
        named="accept_index accept_token_num candidates target_probs threshold_acc threshold_single",
        until=(0, 5, 22),
    ),
    seam(
        "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs_func",
        "worker",
        named="batch_size device draft_token_num end_offset req_pool_indices req_to_token start_offset",
    ),
    seam(
        "sglang.srt.speculative.spec_utils:record_stream_for_v2_verify", "worker", takes="batch verify_input fwd_stream"
    ),
    seam("sglang.srt.speculative.spec_utils:prepare_mamba_track_for_verify", "worker", takes="batch"),
    seam(
        "sglang.srt.speculative.spec_utils:commit_mamba_states_after_verify",
        "worker",
        takes="target_worker batch accept_lens accept_index draft_token_num",
    ),
    seam(
        "sglang.srt.speculative.spec_utils:move_accept_tokens_to_target_kvcache",
        "worker",
        takes="batch accept_index num_correct_drafts token_to_kv_pool_allocator",
    ),
    seam(
        "sglang.srt.layers.logprob_processor:compute_spec_logprobs",
        "worker",
        takes="batch logits_output predict",
        named="accept_index",
    ),
    seam(
        "sglang.srt.layers.sampler:Sampler.forward",
        "worker",
        takes="logits_output sampling_info return_logprob top_logprobs_nums token_ids_logprobs positions",
    ),
    seam("sglang.srt.layers.sampler:Sampler._preprocess_logits", "worker", takes="logits sampling_info"),
    seam(
        "sglang.srt.layers.logits_processor:LogitsProcessorOutput",
        "worker",
        holds="hidden_states next_token_logits next_token_logprobs",
    ),
)

_EVENTS = (
    seam("sglang.srt.managers.scheduler:Scheduler", "worker", holds="waiting_queue"),
    seam("sglang.srt.managers.scheduler:Scheduler.maybe_init_draft_worker", "worker"),
    seam("sglang.srt.managers.scheduler:Scheduler.on_idle", "events"),
    seam(
        "sglang.srt.model_executor.model_runner_components.weight_updater:WeightUpdater",
        "events",
        holds="get_model_runner load_weights_from_distributed update_weights_from_disk update_weights_from_ipc "
        "update_weights_from_tensor",
    ),
    seam(
        "sglang.srt.model_executor.model_runner_components.weight_updater:WeightUpdater.end_weight_update",
        "events",
        named="run_post_load",
    ),
    seam(
        "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager",
        "events",
        holds="draft_worker offload_tags release_memory_occupation resume_memory_occupation",
    ),
)

_STATUS = (
    seam("sglang.srt.managers.scheduler:Scheduler", "status", holds="draft_worker enable_overlap"),
    seam(
        "sglang.srt.managers.scheduler_components.internal_state:SchedulerInternalStateController",
        "status",
        holds="scheduler",
    ),
    seam(
        "sglang.srt.managers.scheduler_components.internal_state:SchedulerInternalStateController.get_internal_state",
        "status",
        takes="recv_req",
    ),
    seam(
        "sglang.srt.managers.scheduler_components.internal_state:SchedulerInternalStateController.set_internal_state",
        "status",
        takes="recv_req",
    ),
    seam("sglang.srt.managers.io_struct:GetInternalStateReqOutput", "status", holds="internal_state"),
    seam("sglang.srt.managers.io_struct:SetInternalStateReq", "status", holds="server_args"),
    seam("sglang.srt.managers.io_struct:SetInternalStateReqOutput", "status", holds="updated"),
)

WORKER: tuple[Seam, ...] = (*_REQUESTS, *_BATCHES, *_TARGET, *_VERIFICATION, *_EVENTS, *_STATUS)
