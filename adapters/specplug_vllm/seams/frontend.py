"""Seams of vLLM that the front end uses: request intake, the HTTP server, the command line."""

from __future__ import annotations

from specplug.seams.seam import Seam, seam

_API = (
    seam("vllm.exceptions:VLLMValidationError", "api"),
    seam("vllm.v1.engine.input_processor:InputProcessor.__init__", "api", takes="vllm_config"),
    seam("vllm.v1.engine.input_processor:InputProcessor.process_inputs", "api", takes="request_id prompt params"),
    seam("vllm.v1.engine.async_llm:AsyncLLM.__init__", "api"),
    seam("vllm.v1.engine.async_llm:AsyncLLM", "api", holds="input_processor"),
    seam("vllm.v1.engine.async_llm:AsyncLLM.add_request", "api", takes="request_id prompt params"),
    seam("vllm.sampling_params:SamplingParams._validate_spec_decode", "api", takes="speculative_config"),
    seam("vllm.sampling_params:SamplingParams", "api", holds="logit_bias n"),
    seam("vllm.v1.worker.gpu.sample.logit_bias:MAX_NUM_LOGIT_BIAS_TOKENS", "api"),
)

_HTTP = (
    seam("vllm.entrypoints.generate.base.serving:GenerateBaseServing", "http", holds="input_processor"),
    seam("vllm.entrypoints.generate.base.serving:GenerateBaseServing._check_model", "http", takes="request"),
    seam("vllm.v1.engine.async_llm:AsyncLLM.generate", "http"),
    seam("vllm.outputs:RequestOutput", "http", holds="outputs request_id"),
    seam("vllm.outputs:CompletionOutput", "http", holds="index token_ids"),
    seam("vllm.entrypoints.serve.engine.protocol:UsageInfo", "http", holds="completion_tokens_details"),
    seam("vllm.entrypoints.serve.engine.protocol:CompletionTokenUsageInfo", "http"),
    seam(
        "vllm.entrypoints.serve.engine.serving:BaseServing.create_error_response",
        "http",
        takes="message err_type status_code",
    ),
    seam(
        "vllm.entrypoints.openai.completion.protocol:CompletionRequest", "http", holds="to_sampling_params vllm_xargs"
    ),
    seam(
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest",
        "http",
        holds="to_sampling_params vllm_xargs",
    ),
    seam(
        "vllm.v1.engine.core_client:AsyncMPClient._call_utility_async",
        "routes",
        "metrics",
        takes="method",
        named="args engine",
    ),
    seam("vllm.v1.engine.core_client:AsyncMPClient", "routes", "metrics", holds="core_engines"),
    seam("vllm.v1.engine.core_client:EngineCoreClient.make_async_mp_client", "metrics", takes="vllm_config"),
    seam("vllm.v1.engine.async_llm:AsyncLLM", "routes", holds="engine_core vllm_config"),
    seam("vllm.plugins.endpoint_plugins.interface:EndpointPlugin.attach_router", "routes", takes="app"),
    seam("vllm.plugins:load_endpoint_plugins", "routes", takes="supported_tasks"),
    seam("vllm.envs", "routes", holds="VLLM_PLUGINS"),
    seam(
        "vllm.plugins.endpoint_plugins.interface:EndpointPlugin.init_state", "routes", takes="engine_client state args"
    ),
    seam("vllm.entrypoints.launchers.cli_args:FrontendArgs", "routes", holds="api_key", until=(0, 32)),
    seam("vllm.entrypoints.common.cli_args:FrontendArgs", "routes", holds="api_key", since=(0, 33)),
    seam("vllm.envs", "routes", holds="VLLM_API_KEY"),
    seam("vllm", "config", "routes", holds="__version__"),
)

_STREAMS = (
    seam("vllm.parser.parser_manager:ParserManager.get_parser", "streams"),
    seam("vllm.parser.abstract_parser:Parser", "streams", holds="model_tokenizer"),
    seam(
        "vllm.parser.abstract_parser:Parser.parse_delta",
        "streams",
        takes="delta_text delta_token_ids request prompt_token_ids",
        named="finished",
    ),
    seam("vllm.entrypoints.generate.base.protocol:DeltaMessage", "streams", holds="content reasoning tool_calls"),
    seam("vllm.entrypoints.generate.base.protocol:DeltaToolCall", "streams", holds="function id index"),
    seam("vllm.entrypoints.generate.base.protocol:DeltaFunctionCall", "streams", holds="arguments name"),
)

_COMMAND_LINE = (
    seam("vllm.engine.arg_utils:AsyncEngineArgs", "cli", holds="from_cli_args"),
    seam("vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config", "cli", named="usage_context"),
    seam("vllm.entrypoints.cli.serve:ServeSubcommand", "cli", holds="validate"),
    seam("vllm.entrypoints.cli.serve:ServeSubcommand.subparser_init", "cli", takes="subparsers"),
    seam("vllm.usage.usage_lib:UsageContext", "cli", holds="OPENAI_API_SERVER"),
    seam("vllm.plugins:load_general_plugins", "cli"),
    seam("vllm.utils.argparse_utils:FlexibleArgumentParser", "cli", holds="parse_args"),
)

FRONT: tuple[Seam, ...] = (*_API, *_HTTP, *_STREAMS, *_COMMAND_LINE)
