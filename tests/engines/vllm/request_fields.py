"""Rows of the standing test for the fields of vLLM's HTTP requests; see `test_request_fields`.

A field becomes a parameter of `SamplingParams`, whose row in `fields` then holds, or a part of the prompt, which is
there before any draft; the rest is asked of servers, or has no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.engines.fields import Row
from tests.engines.vllm.fields import ROWS

CHAT = "openai.chat_completion.protocol.ChatCompletionRequest"
COMPLETION = "openai.completion.protocol.CompletionRequest"
RESPONSES = "openai.responses.protocol.ResponsesRequest"
GENERATE = "scale_out.token_in_token_out.protocol.GenerateRequest"
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETION: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    GENERATE: {"token_ids": [5], "sampling_params": {}},
}
"""What each kind of request cannot do without; classes of `vllm.entrypoints`."""


@dataclass(frozen=True)
class Becomes(Row):
    """A field that is translated when the request comes in.

    Attributes:
        becomes: the field of `SamplingParams`, or "prompt".
    """

    becomes: str = ""


def prompt(name: str, value: Any, **beside: Any) -> Becomes:
    return Becomes(name, {name: value, **beside}, becomes="prompt", base=beside)


def params(name: str, value: Any, becomes: str = "", **beside: Any) -> Becomes:
    return Becomes(name, {name: value, **beside}, becomes=becomes or name, base=beside)


def no_text(why: str, *names: str) -> list[Row]:
    return [Row(name, fate="no text", why=why) for name in names]


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
OF_ENGINES = (
    *("trace_decode_token_ids", "prompt_logprob_token_ids", "prompt_logprob_start", "flat_logprobs", "detokenize"),
    *("output_kind", "skip_reading_prefix_cache"),
)
"""Parameters that requests of servers have only inside of `sampling_params`."""
OTHERWISE = ("n", "logprobs", "logprob_token_ids", "max_tokens", "stream_interval")  # with other values, or on servers
SAME = [
    params(row.name, row.given[row.name])
    for row in ROWS
    if row.name in row.given and row.name not in (*OTHERWISE, *OF_ENGINES)
]
TRANSLATED = [
    *SAME,
    params("n", 2, temperature=1.0),
    params("stream_interval", 5),
    params("routed_experts_prompt_start", 3),
    params("watermarking", False),
    params("spaces_between_special_tokens", False),
    params("logprob_token_ids", [281, 5], logprobs=True),
    params("top_logprobs", 3, "logprobs", logprobs=True, include=["message.output_text.logprobs"]),
    params("response_format", SCHEMA, "structured_outputs"),
    params(
        "text", {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}, "structured_outputs"
    ),
    params("max_output_tokens", 5, "max_tokens"),
    params("vllm_xargs", {"x": 1}, "extra_args"),
    params("kv_transfer_params", {"x": 1}, "extra_args"),
    params("ec_transfer_params", {"x": 1}, "extra_args"),
    params("sampling_params", {"top_k": 3}, "top_k"),
    prompt("reasoning_effort", "low"),
    prompt("reasoning", {"effort": "low"}),
    prompt("add_generation_prompt", False),
    prompt("continue_final_message", True, add_generation_prompt=False),
    prompt("documents", [{"title": "x", "text": "y"}]),
    prompt("chat_template", "{{ messages }}"),
    prompt("chat_template_kwargs", {"x": 1}),
    prompt("media_io_kwargs", {"image": {"x": 1}}),
    prompt("truncate_prompt_tokens", 5),
    prompt("truncation_side", "left"),
    prompt("truncation", "auto"),
    Becomes("add_special_tokens", {"add_special_tokens": True}, becomes="prompt", base={"add_special_tokens": False}),
    prompt("return_token_offsets", True),
]
"""For each kind of request that has the field."""

SERVED = [
    Row("logprobs", {"logprobs": 2}),
    Row("max_tokens", {"max_tokens": 5}),
    Row("echo", {"echo": True, "logprobs": 1}, base={"logprobs": 1}),
    Row("stream", {"stream": True}),
    Row("stream_options", {"stream": True, "stream_options": {"include_usage": True}}, base={"stream": True}),
    Row("return_tokens_as_token_ids", {"logprobs": 1, "return_tokens_as_token_ids": True}, base={"logprobs": 1}),
    Row("return_token_ids", {"return_token_ids": True}),
    Row("use_beam_search", {"use_beam_search": True, "n": 2}, base={"n": 2, "temperature": 0.25}),
]
"""Completions.  What a field of `SamplingParams` becomes in a response is here if only servers have it."""

SERVED_CHATS = [
    Row("max_completion_tokens", {"max_completion_tokens": 5}),
    Row("return_prompt_text", {"return_prompt_text": True}),
]

PROMPTS = "is the prompt, or a part of it"
NO_TEXT = [
    *no_text(PROMPTS, "prompt", "messages", "input", "instructions", "previous_response_id", "previous_input_messages"),
    *no_text(PROMPTS, "token_ids", "features", "content_parts", "mm_processor_kwargs"),
    *no_text("prompts as embeddings: `EmbeddingsSuite` drafts behind them", "prompt_embeds"),
    *no_text("chooses or names, and computes nothing", "model", "user", "request_id", "session_id", "metadata"),
    *no_text("vLLM does not read it", "service_tier", "prompt_cache_key", "max_tool_calls", "token_offsets"),
    *no_text("ranks beams that are decoded", "length_penalty"),
    *no_text("vLLM refuses it in a completion, drafts or none", "suffix"),
    *no_text("only the render endpoints, which generate nothing, read it", "mm_payload", "return_mm_kwargs"),
    *no_text("is a part of the prompt, and a grammar if required; `ChatSuite` has both", "tools", "tool_choice"),
    *no_text("shapes a response from the same text", "parallel_tool_calls", "include_reasoning", "include"),
    *no_text("shapes a response from the same text", "enable_response_messages", "output_mode"),
    *no_text("keeps the response for later requests", "store", "background"),
    *no_text("says when a grammar begins, which is `ReasoningSuite`'s", "reasoning_ended", "reasoning_parser_kwargs"),
    *no_text("decides when a request runs; `LifecycleSuite` has preemption", "priority"),
    *no_text("decides what is in the cache: each prompt in pieces of `fields` has one", "cache_salt"),
]
ALL = [*TRANSLATED, *SERVED, *SERVED_CHATS, *NO_TEXT]
