"""Checks of SGLang's version and private names, used by the rest of the adapter, and the table of these names.

Each process probes the names of a part of the adapter before it uses that part.  If a seam has moved, the server does
not start; if only an optional part uses the seam, that part is switched off with a warning.  Tests and ``specplug
doctor`` probe the whole table.
"""

from __future__ import annotations

from specplug.seams.seam import table
from specplug.seams.support import UNKNOWN, Range, Support

OPTIONAL = {
    "events": "proposers learn nothing of new weights, released memory and idle times",
    "status": "the status of a server and orders to it",
    "metrics": "specplug's metrics on /metrics",
    "timing": "timing steps at start; policies learn what steps cost while serving",
}
"""Parts that correct serving does not need, and what is off if their seams have moved."""

VERSIONS = Range(engine="SGLang", oldest=(0, 5, 22), newest=(0, 5, 23))
"""Supported versions: `make test` runs the newest, `make test-versions` the others."""

SEAMS = table("""
[algorithm]
sglang.srt.plugins.hook_registry
  HookRegistry.register(target, hook, hook_type)
  HookType: AFTER AROUND BEFORE
sglang.srt.speculative.spec_info
  SpeculativeAlgorithm.register(name, *, spec_class, supports_overlap, validate_server_args)
  SpeculativeAlgorithm: carries_draft_hidden_states need_topk
  SpeculativeAlgorithm.create_future_map(device, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)
sglang.srt.speculative.spec_registry
  CustomSpecAlgo.handle_server_args(server_args)
  CustomSpecAlgo: has_draft_kv is_ngram
  get_spec(name)
sglang.srt.arg_groups.overrides
  model_config_of(server_args)
  resolving_view(server_args)
sglang.srt.configs.hybrid_arch:mambaish_config(model_config)
sglang.srt.utils.common:get_device_memory_capacity(device)
# Arguments that are refused, and those that the adapter fills in.
sglang.srt.arg_groups.fields.spec:Spec: speculative_accept_threshold_acc speculative_accept_threshold_single
    speculative_adaptive speculative_algorithm speculative_eagle_topk speculative_num_draft_tokens
    speculative_num_steps speculative_use_rejection_sampling
sglang.srt.arg_groups.fields.schedule:Schedule: enable_mixed_chunk
sglang.srt.arg_groups.fields.parallel:Parallel: enable_dp_attention pp_size
sglang.srt.arg_groups.fields.exec_
  ExecFeatures: enable_watermark
  ExecMamba: enable_linear_replayssm_spec
  ExecOverlap: enable_two_batch_overlap
sglang.srt.arg_groups.fields.disagg:Disagg: disaggregation_mode enable_pdmux
sglang.srt.arg_groups.fields.memory:Memory: enable_hisparse
sglang.srt.arg_groups.fields.serving:Serving: grpc_mode smg_grpc_mode

[worker]
sglang.srt.managers.schedule_batch
  FINISH_ABORT
  FINISH_MATCHED_STR: matched
  Req: __dict__ spec_correct_drafts_histogram spec_num_correct_drafts
  !Req.update_finish_state(new_accepted_len)
  !Req.update_spec_correct_drafts_histogram(num_correct_drafts)
  ScheduleBatch: forward_mode input_ids out_cache_loc sampling_info seq_lens seq_lens_cpu seq_lens_sum spec_info
sglang.srt.configs.hybrid_arch:mambaish_config(model_config)
sglang.srt.session.session_controller:!Session._concat_token_arrays(last_req, req, session_params)
sglang.srt.mem_cache.kv_cache_configurator
  !KVCacheConfigurator._profile_available_bytes(pre_model_load_memory)
  !get_req_to_token_extra_context_len
sglang.srt.mem_cache.allocation_sizing:get_alloc_reserve_per_decode
sglang.srt.managers.utils:GenerationBatchResult: accept_index accept_lens can_run_cuda_graph cap_lens new_seq_lens
    next_draft_input speculative_num_draft_tokens speculative_output_stride
sglang.srt.managers.overlap_utils
  FutureMap.stash(future_indices, payload)
  FutureMap._resolve_spec_extras(batch)
  FutureMap.__init__(device, spec_algo, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)
sglang.srt.speculative.base_spec_worker
  BaseSpecWorker: __dict__ __init__ _additional_graph_memory_usage _additional_graph_time_usage clear_cache_pool
      draft_worker init_attention_backends spec_v2_attn_backends target_worker
  BaseSpecWorker.on_verify_complete_cpu(num_correct_drafts_per_req, batch_size)
  BaseSpecWorker.note_request_finished(rid, natural_stop)
sglang.srt.managers.tp_worker
  TpModelWorker: get_memory_pool tokenizer
  TpModelWorker.forward_batch_generation(batch, *, is_verify)
sglang.srt.model_executor.model_runner:ModelRunner: _get_attention_backend decode_cuda_graph_runner
    max_decode_logits_rows spec_algorithm
sglang.srt.layers.attention.base_attn_backend
  AttentionBackend: needs_cpu_seq_lens verify_mask
  AttentionBackend.init_cuda_graph_state(max_bs, max_num_tokens)
sglang.srt.layers.attention.verify_mask:VerifyMask: buffer is_read max_bs mode
sglang.srt.layers.attention.hybrid_attn_backend:HybridAttnBackend: decode_backend prefill_backend
    spec_attn_is_decode
sglang.srt.layers.attention.hybrid_linear_attn_backend
  HybridLinearAttnBackend: full_attn_backend linear_attn_backend
  MambaAttnBackendBase: accept_lens_pool
sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.__init__(model_runner, *,
    attn_backend, speculative_num_draft_tokens, speculative_num_steps)
sglang.srt.arg_groups.model_override_base:mamba_extra_buffer_of(cfg)
sglang.srt.runtime_context
  RuntimeContext.override(source, fields)
  get_context
  get_exec
  get_parallel
  get_spec
sglang.srt.distributed.parallel_state:GroupCoordinator.broadcast(input_, src)
sglang.srt.speculative.ngram_info:NgramVerifyInput.__init__(*, accept_lens, accept_tokens, custom_mask, draft_token,
    draft_token_num, new_seq_lens, positions, retrieve_index, retrieve_next_sibling, retrieve_next_token)
sglang.srt.speculative.eagle_utils
  eagle_sample(verify_input, batch, logits_output, grammar_mask, *, watermark_state)
  _is_cpu
  _is_hip
  _is_xpu
  _verify_uses_greedy(*, is_all_greedy, is_cpu, is_hip, is_xpu, use_rejection_sampling)
  verify_tree_greedy_func(*, accept_index, accept_token_num, candidates, predicts, retrieve_index,
      retrieve_next_sibling, retrieve_next_token, target_predict, topk)
sglang.kernels.ops.speculative.sampling:!tree_speculative_sampling_target_only(*, accept_index, accept_token_num,
    candidates, target_probs, threshold_acc, threshold_single) <= 0.5.22
sglang.srt.speculative.spec_utils
  GrammarTree.from_device(retrieve_next_token, retrieve_next_sibling, draft_token)
  build_grammar_vocab_mask(*, barrier, device, reqs, sampling_info, tree)
  commit_mamba_states_after_verify(target_worker, batch, accept_lens, accept_index, draft_token_num)
  move_accept_tokens_to_target_kvcache(batch, accept_index, num_correct_drafts, token_to_kv_pool_allocator)
  prepare_mamba_track_for_verify(batch)
  record_stream_for_v2_verify(batch, verify_input, fwd_stream)
sglang.srt.layers.logprob_processor:compute_spec_logprobs(batch, logits_output, predict, *, accept_index)
sglang.srt.layers.sampler
  Sampler.forward(logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions)
  Sampler._preprocess_logits(logits, sampling_info)
sglang.srt.managers.scheduler:Scheduler: !maybe_init_draft_worker
sglang.srt.constrained.base_grammar_backend
  BaseGrammarObject: is_terminated try_jump_forward
  BaseGrammarObject.accept_token(token)
  BaseGrammarObject.fill_vocab_mask(vocab_mask, idx)
  BaseGrammarObject.rollback(k)
sglang.srt.constrained.xgrammar_backend
  XGrammarGrammar: accepted_tokens matcher
  XGrammarGrammar.rollback(k)
sglang.srt.constrained.reasoner_grammar_backend:ReasonerGrammarObject: grammar

[timing]
sglang.srt.managers.schedule_batch
  Req.__init__(rid, origin_input_text, origin_input_ids, sampling_params, *, vocab_size)
  ScheduleBatch.init_new(reqs, req_to_token_pool, token_to_kv_pool_allocator, tree_cache, model_config, enable_overlap,
      spec_algorithm)
  ScheduleBatch: orig_seq_lens req_pool_indices req_pool_indices_cpu
sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.from_schedule_batch(batch, vocab_size)
sglang.srt.sampling.sampling_params:SamplingParams.normalize(tokenizer)
sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator
sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator
sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator.__init__(size, page_size)
sglang.srt.mem_cache.memory_pool:ReqToTokenPool

[events]
sglang.srt.managers.scheduler:Scheduler: !on_idle
sglang.srt.model_executor.model_runner_components.weight_updater
  WeightUpdater: get_model_runner !load_weights_from_distributed !update_weights_from_disk !update_weights_from_ipc
      !update_weights_from_tensor
  !WeightUpdater.end_weight_update(*, run_post_load)
sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager: draft_worker offload_tags
    !release_memory_occupation !resume_memory_occupation

[status]
sglang.srt.managers.scheduler:Scheduler: draft_worker
sglang.srt.managers.scheduler_components.internal_state
  SchedulerInternalStateController: scheduler
  !SchedulerInternalStateController.get_internal_state(recv_req)
  !SchedulerInternalStateController.set_internal_state(recv_req)
sglang.srt.managers.io_struct
  GetInternalStateReqOutput: internal_state
  SetInternalStateReq: server_args
  SetInternalStateReqOutput: updated

[engine drafts]
sglang.srt.speculative.spec_info
  !SpeculativeAlgorithm.handle_server_args(server_args)
  !SpeculativeAlgorithm.create_worker(server_args)
sglang.srt.arg_groups.overrides:declare_resolution(server_args, source, fields)
sglang.srt.environ:Envs: SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND
sglang.srt.arg_groups.fields.spec:Spec: enable_multi_layer_eagle
sglang.srt.arg_groups.fields.lora:Lora: enable_lora
# Buffers are sized for the longest draft, whatever length a step has.
sglang.srt.runtime_context:max_speculative_num_draft_tokens
sglang.srt.speculative.adaptive_runtime_state
  AdaptiveController.activate_step_by_batch(batch_size)
  AdaptiveController.init_states(cuda_graph_bs)
  AdaptiveController.on_verify_complete(num_correct_drafts_per_req, batch_size)
  AdaptiveController.register(state)
  SpecRuntimeState: speculative_num_draft_tokens speculative_num_steps
sglang.srt.speculative.eagle_worker_v2
  logger
  EAGLEWorkerV2: activate_step_by_batch adaptive_controller apply_runtime_state init_cuda_graphs on_verify_complete_cpu
  EAGLEWorkerV2.build_adaptive_runtime_state(speculative_num_steps, speculative_num_draft_tokens)
  EAGLEWorkerV2: alloc_memory_pool clear_cache_pool draft_worker
  EAGLEWorkerV2.__init__(server_args, gpu_id, nccl_port, target_worker)
  EAGLEWorkerV2.forward_batch_generation(batch)
  EAGLEWorkerV2.verify(batch)
  !build_eagle_verify_input(batch, draft_input, parent_list, top_scores_index, draft_tokens, draft_probs, *,
      target_worker, num_steps, num_draft_tokens)
sglang.srt.speculative.eagle_info:EagleVerifyInput: retrieve_next_token
sglang.srt.speculative.eagle_worker_common:!eagle_sample(verify_input, batch, logits_output, grammar_mask)
sglang.srt.speculative.base_spec_worker:EagleDraftWorkerBase: _rebuild_topk1_chain_buffers
    _topk1_parents_prealloc _topk1_score_indices_prealloc
sglang.srt.speculative.standalone_worker_v2:StandaloneWorkerV2.__init__(server_args, gpu_id, nccl_port,
    target_worker)

[api]
sglang.srt.server_args:ServerArgs: !check_server_args
sglang.srt.plugins.hook_registry:HookRegistry: _patched apply_hooks
sglang.srt.managers.tokenizer_manager
  !TokenizerManager.__init__(server_args, port_args)
  !TokenizerManager.generate_request(obj, request)
  !TokenizerManager._calculate_spec_decoding_metrics(meta_info, recv_obj, i)
  TokenizerManager: __dict__ preferred_sampling_params
sglang.srt.managers.io_struct
  BatchStrOutput: spec_num_cap_tokens spec_verify_ct
  GenerateReqInput: sampling_params stream
sglang.srt.managers.multi_tokenizer_mixin:!write_data_for_multi_tokenizer(port_args, server_args, scheduler_info)
sglang.srt.managers.tokenizer_control_mixin
  !TokenizerControlMixin.add_external_corpus(obj)
  !TokenizerControlMixin.remove_external_corpus(corpus_id)
  TokenizerControlMixin: !get_internal_state !init_communicators !list_external_corpora
  !TokenizerControlMixin.set_internal_state(obj)

[api, http]
sglang.srt.plugins:load_plugins

[http]
sglang.srt.entrypoints.http_server
  _create_error_response
  get_global_state
  !serve_generate_request(obj, request)
sglang.srt.entrypoints.openai.serving_base
  !OpenAIServingBase.handle_request(request, raw_request)
  OpenAIServingBase.create_error_response(message, err_type)
sglang.srt.entrypoints.openai.protocol
  ChatCompletionRequest: custom_params
  CompletionRequest: custom_params
sglang.srt.managers.multi_tokenizer_mixin:MultiTokenizerRouter.__init__(server_args, port_args)
sglang.srt.function_call.function_call_parser:FunctionCallParser.parse_stream_chunk(chunk_text)
sglang.srt.function_call.json_array_parser:JsonArrayParser.parse_streaming_increment(new_text, tools)
sglang.srt.parser.reasoning_parser:ReasoningParser.parse_stream_chunk(chunk_text)
sglang.srt.utils.auth
  AuthLevel: ADMIN_OPTIONAL
  auth_level(level)

[metrics]
sglang.srt.utils.common:!add_prometheus_middleware(app)
""")
"""What of SGLang this adapter relies on, by the part of the adapter; see `specplug.seams.seam`.

The classes below `sglang.srt.arg_groups.fields` are those from which SGLang assembles a server's arguments.
"""


def installed_version() -> str:
    """Return this process's SGLang version, "dev" if SGLang does not know its own."""
    from sglang.version import __version__

    return UNKNOWN if str(__version__).startswith("0.0.0") else str(__version__)


support = Support(VERSIONS, SEAMS, who="specplug_sglang", installed=installed_version, optional=OPTIONAL)
require = support.require
available = support.available
moved_seams = support.moved_seams
