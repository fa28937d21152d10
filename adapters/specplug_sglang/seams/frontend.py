"""Seams of SGLang that the front end uses: request intake, the HTTP server, the command line."""

from __future__ import annotations

from specplug.seams.seam import Seam, seam

_API = (
    seam("sglang.srt.server_args:ServerArgs", "api", holds="check_server_args"),
    seam("sglang.srt.plugins.hook_registry:HookRegistry", "api", holds="_patched apply_hooks"),
    seam("sglang.srt.managers.tokenizer_manager:TokenizerManager.__init__", "api", takes="server_args port_args"),
    seam("sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request", "api", takes="obj request"),
    seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._calculate_spec_decoding_metrics",
        "api",
        takes="meta_info recv_obj i",
    ),
    seam("sglang.srt.managers.io_struct:BatchStrOutput", "api", holds="spec_num_cap_tokens spec_verify_ct"),
    seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager",
        "api",
        holds="__dict__ incremental_streaming_output model_config preferred_sampling_params server_args tokenizer",
    ),
    seam("sglang.srt.managers.io_struct:GenerateReqInput", "api", holds="sampling_params stream"),
    seam(
        "sglang.srt.managers.multi_tokenizer_mixin:write_data_for_multi_tokenizer",
        "api",
        takes="port_args server_args scheduler_info",
    ),
    seam("sglang.srt.plugins:load_plugins", "api", "cli", "http"),
)

_CORPORA = (
    seam("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.add_external_corpus", "api", takes="obj"),
    seam(
        "sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.remove_external_corpus",
        "api",
        takes="corpus_id",
    ),
    seam("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.list_external_corpora", "api"),
    seam("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.init_communicators", "api"),
    seam("sglang.srt.managers.io_struct:AddExternalCorpusReqOutput", "api", holds="message success"),
    seam("sglang.srt.managers.io_struct:RemoveExternalCorpusReqOutput", "api", holds="message success"),
    seam("sglang.srt.managers.io_struct:ListExternalCorporaReqOutput", "api", holds="message success"),
)

_HTTP = (
    seam("sglang.srt.entrypoints.http_server", "http", holds="_create_error_response app get_global_state"),
    seam("sglang.srt.entrypoints.http_server:serve_generate_request", "http", takes="obj request"),
    seam("sglang.srt.entrypoints.http_server:_GlobalState", "http", holds="tokenizer_manager"),
    seam(
        "sglang.srt.entrypoints.openai.serving_base:OpenAIServingBase.handle_request",
        "http",
        takes="request raw_request",
    ),
    seam("sglang.srt.entrypoints.openai.serving_base:OpenAIServingBase", "http", holds="tokenizer_manager"),
    seam(
        "sglang.srt.entrypoints.openai.serving_base:OpenAIServingBase.create_error_response",
        "http",
        takes="message err_type",
    ),
    seam("sglang.srt.entrypoints.openai.protocol:CompletionRequest", "http", holds="custom_params"),
    seam("sglang.srt.entrypoints.openai.protocol:ChatCompletionRequest", "http", holds="custom_params"),
    seam("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.init_communicators", "http"),
    seam("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.get_internal_state", "api"),
    seam("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.set_internal_state", "api", takes="obj"),
    seam(
        "sglang.srt.managers.multi_tokenizer_mixin:MultiTokenizerRouter.__init__",
        "http",
        takes="server_args port_args",
    ),
    seam(
        "sglang.srt.function_call.function_call_parser:FunctionCallParser.parse_stream_chunk",
        "http",
        takes="chunk_text",
    ),
    seam(
        "sglang.srt.function_call.json_array_parser:JsonArrayParser.parse_streaming_increment",
        "http",
        takes="new_text tools",
    ),
    seam("sglang.srt.function_call.core_types:StreamingParseResult", "http", holds="calls normal_text"),
    seam("sglang.srt.parser.reasoning_parser:ReasoningParser.parse_stream_chunk", "http", takes="chunk_text"),
    seam("sglang.srt.utils.common:add_prometheus_middleware", "metrics", takes="app"),
    seam("sglang.srt.arg_groups.fields.serving:Serving", "http", holds="admin_api_key"),
    seam("sglang.srt.utils.auth:AuthLevel", "http", holds="ADMIN_OPTIONAL"),
    seam("sglang.srt.utils.auth:auth_level", "http", takes="level"),
    seam("sglang", "http", holds="__version__"),
)

_COMMAND_LINE = (
    seam("sglang.launch_server", "cli"),
    seam("sglang.srt.server_args:prepare_server_args", "cli", takes="argv"),
    seam("sglang.srt.server_args:ServerArgs", "cli", holds="resolve_once"),
    seam("sglang.srt.arg_groups.fields.exec_:ExecGraph", "cli", holds="cuda_graph_config"),
    seam("sglang.srt.model_executor.cuda_graph_config:CudaGraphConfig", "cli", holds="decode"),
    seam("sglang.srt.model_executor.cuda_graph_config:PhaseConfig", "cli", holds="backend max_bs"),
    seam("sglang.srt.model_executor.cuda_graph_config:Backend", "cli", holds="DISABLED"),
    seam("sglang.version", "algorithm", holds="__version__"),
)

FRONT: tuple[Seam, ...] = (*_API, *_CORPORA, *_HTTP, *_COMMAND_LINE)
