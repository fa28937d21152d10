"""SGLang's rows of the standing test: one per field of `SamplingParams` and `GenerateReqInput`; see
`tests.engines.fields`.
"""

from __future__ import annotations

import json
from typing import Any

from tests.engines.fields import Row
from tests.engines.plain import ids, prompts
from tests.engines.suites.features import JSON_SCHEMA, NEWLINE

LENGTH = 8
CAT = ids("<|edit|>" + "the cat sat on the mat and " * 4 + "the cat sat on the")
LOOP = ids("x = 1\ny = 2\n" * 3 + "x = 1\n")
DIGITS = [ids("x = 1\n")[2], ids("x = 2\n")[2]]
PROMPTS: dict[str, list[int]] = {
    "edit": CAT,
    "loop": LOOP,
    "ends": ids("<|document|>def f(x):\n    return x\n<|quote|>def f<|answer|>"),
}
"""Each fits a step of 64 tokens; the last one's answer ends."""
PREFIX = list(prompts()[0][:100])
"""What stands before a prompt that is computed in several steps."""

DETERMINISTIC = ("temperature", "top_p", "top_k", "sampling_seed")
"""Rows whose answers are drawn by seeds, so that they can be compared."""

WARM: dict[str, Any] = {"temperature": 1.6, "sampling_seed": 7}
SURE: dict[str, Any] = {"ignore_eos": True}
ASSIGN: dict[str, Any] = {"regex": "([xy] = [0-9]\n){6}"}
BIASED: dict[str, Any] = {"logit_bias": {str(NEWLINE): -20.0}}
OF_PROMPTS = "stands for the prompt: "
APART = "for prefill and decode on separate servers, which specplug refuses at start-up"
DERIVED = "SGLang derives it from another field"
EXPERTS = "shows how a mixture of experts or an indexer worked"
SENDS = "says where a request runs or how it is labelled"
MEDIA = OF_PROMPTS + "images, sound and video, see test_suite.py, TestPictures"


def without_text(why: str, names: str) -> list[Row]:
    return [Row(name, fate="no text", why=why) for name in names.split()]


COUNTED = "SGLang's verification counts one token per step"
UNMASKED = "SGLang does not support it with any speculation"
SAMPLING = [
    Row("max_new_tokens", {"max_new_tokens": 5}),
    Row("stop", {"stop": ["1\ny = 2", "x = 1\n"]}, prompt="loop"),
    Row("stop_token_ids", {"stop_token_ids": [NEWLINE]}, prompt="loop"),
    Row("stop_regex", {"stop_regex": ["y = [0-9]\nx"]}, prompt="loop"),
    Row("temperature", WARM),
    Row("top_p", {**WARM, "top_p": 0.6}, base=WARM),
    Row("top_k", {**WARM, "top_k": 3}, base=WARM),
    Row(
        "min_p",
        {"temperature": 1.6, "min_p": 1.0},
        "undrafted",
        "SGLang's verification leaves it out",
        base={"temperature": 1.6},
    ),
    Row("frequency_penalty", {"frequency_penalty": 1.8}, "undrafted", COUNTED, prompt="loop"),
    Row("presence_penalty", {**BIASED, "presence_penalty": 1.9}, "undrafted", COUNTED, base=BIASED, prompt="loop"),
    Row("repetition_penalty", {**ASSIGN, "repetition_penalty": 1.9}, "undrafted", COUNTED, base=ASSIGN, prompt="loop"),
    Row(
        "min_new_tokens",
        {"min_new_tokens": 9, "stop_token_ids": [NEWLINE]},
        "undrafted",
        COUNTED,
        base={"stop_token_ids": [NEWLINE]},
        prompt="loop",
    ),
    Row("n", {"n": 2, "temperature": 1.0, "top_k": 1}),
    Row("beam_width", {"beam_width": 2}, "refused", UNMASKED),
    Row("json_schema", {"json_schema": json.dumps(JSON_SCHEMA)}),
    Row("regex", {"regex": "(x = [0-9]\n){2}y = 77"}, prompt="loop"),
    Row("ebnf", {"ebnf": 'root ::= ("x = 1\\ny = " [3-9] "\\n")+'}, prompt="loop"),
    Row(
        "structural_tag",
        {
            "structural_tag": json.dumps(
                {"type": "structural_tag", "format": {"type": "const_string", "value": "x = 77"}}
            )
        },
    ),
    Row("ignore_eos", SURE, prompt="ends"),
    Row("skip_special_tokens", {**SURE, "skip_special_tokens": False}, base=SURE, prompt="ends"),
    Row("no_stop_trim", {"stop": [" sat"], "no_stop_trim": True}, base={"stop": [" sat"]}),
    Row("logit_bias", BIASED, prompt="loop"),
    Row("sampling_seed", WARM, base={**WARM, "sampling_seed": 8}),
    *without_text("joins what slow tokenizers decoded", "spaces_between_special_tokens"),
    *without_text("says how much of an answer comes at once", "stream_interval"),
    *without_text("for custom logit processors and specplug", "custom_params"),
    *without_text("needs --enable-watermark, which specplug refuses at start-up", "watermark"),
    *without_text(DERIVED, "stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized"),
    *without_text(DERIVED, "ebnf_full_assistant"),
]
"""Of `SamplingParams`."""

SCORED: dict[str, Any] = {"return_logprob": True}
MASKED: dict[str, Any] = {"return_sampling_mask": True}
FLAT: dict[str, Any] = {**SCORED, "logprob_start_len": 0, "top_logprobs_num": 2}
REQUEST = [
    Row("text", {"text": "x = 1\ny = 2\nx = 1\n"}),
    Row("return_logprob", SCORED),
    Row("logprob_start_len", {**SCORED, "logprob_start_len": 0}, base=SCORED),
    Row("top_logprobs_num", {**SCORED, "top_logprobs_num": 3}, base=SCORED),
    Row("token_ids_logprob", {**SCORED, "token_ids_logprob": [NEWLINE, *DIGITS]}, base=SCORED),
    Row("return_text_in_logprobs", {**SCORED, "return_text_in_logprobs": True}, base=SCORED),
    Row("return_flat_raw_top_logprobs", {**FLAT, "return_flat_raw_top_logprobs": True}, base=FLAT),
    Row("return_flat_raw_output_top_logprobs", {**FLAT, "return_flat_raw_output_top_logprobs": True}, base=FLAT),
    Row(
        "return_flat_raw_top_logprobs_b64",
        {**FLAT, "return_flat_raw_output_top_logprobs": True, "return_flat_raw_top_logprobs_b64": True},
        base={**FLAT, "return_flat_raw_output_top_logprobs": True},
    ),
    Row("return_hidden_states", {"return_hidden_states": True}),
    Row("return_prompt_token_ids", {"return_prompt_token_ids": True}),
    Row(
        "custom_logit_processor",
        {**ASSIGN, "custom_logit_processor": "ban", "custom_params": {"token_ids": DIGITS}},
        "undrafted",
        "SGLang's verification leaves it out",
        base=ASSIGN,
        prompt="loop",
    ),
    Row("return_sampling_mask", MASKED, "refused", UNMASKED),
    Row("sampling_logprobs_mode", {**MASKED, "sampling_logprobs_mode": "support"}, "refused", UNMASKED),
    *without_text("the rows above", "sampling_params"),
    *without_text("the same answer in pieces, see test_server.py", "stream"),
    *without_text(OF_PROMPTS + "that of all rows", "input_ids"),
    *without_text(OF_PROMPTS + "see test_suite.py, TestEmbeddings", "input_embeds positional_embed_overrides"),
    *without_text(MEDIA, "image_data video_data audio_data mm_hashes mm_content_hashes modalities video_config"),
    *without_text(MEDIA, "use_audio_in_video max_dynamic_patch min_dynamic_patch image_max_dynamic_patch"),
    *without_text(MEDIA, "video_max_dynamic_patch images_config mm_processor_kwargs need_wait_for_mm_inputs"),
    *without_text(MEDIA, "num_items_assigned encoder_urls"),
    *without_text(OF_PROMPTS + "the turns of a session, see test_lifecycle.py", "session_params"),
    *without_text("needs --enable-watermark, which specplug refuses at start-up", "watermark"),
    *without_text("needs --enable-lora, which SGLang refuses with specplug at start-up", "lora_path lora_id"),
    *without_text("for models that reason, see test_suite.py, TestReasoning", "require_reasoning max_thinking_tokens"),
    *without_text(EXPERTS, "return_routed_experts routed_experts_start_len return_indexer_topk"),
    *without_text("reads scores of a prompt, before any draft", "multi_item_delimiter_indices token_indices_to_pool"),
    *without_text(APART, "bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size"),
    *without_text(APART, "disagg_prefill_dp_rank"),
    *without_text(SENDS, "rid session_id routed_dp_rank data_parallel_rank routing_key conversation_id"),
    *without_text(SENDS, "http_worker_ipc background priority custom_labels external_trace_header received_time"),
    *without_text("chooses what of a prompt is cached", "extra_key cache_salt kv_hints"),
    *without_text("says what is logged", "log_metrics no_logs"),
    *without_text("SGLang reads it nowhere, or for images alone", "return_entropy return_bytes"),
]
"""Of `GenerateReqInput`."""

ROWS = [*SAMPLING, *REQUEST]
NEW = ("mm_processor_kwargs",)
"""Fields that SGLang 0.5.22 lacks."""

OPENAI: dict[str, Any] = {
    **{"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.2, "temperature": 0.5, "top_p": 0.5},
    **{"top_k": 5, "min_p": 0.1, "min_tokens": 3, "n": 2, "seed": 7, "stop": ["a"], "stop_regex": "a"},
    **{"stop_token_ids": [5], "logit_bias": {"5": 1.0}, "max_tokens": 5, "max_completion_tokens": 5},
    **{"regex": "a", "ebnf": 'root ::= "a"', "json_schema": "{}", "response_format": {"type": "json_object"}},
    **{"no_stop_trim": True, "ignore_eos": True, "skip_special_tokens": False, "custom_params": {"a": 1}},
    **{"custom_logit_processor": "x", "logprobs": 1, "top_logprobs": 2, "return_hidden_states": True, "stream": True},
    **{"return_token_ids": True, "return_prompt_token_ids": True, "return_sampling_mask": True, "extra_key": "a"},
    **{"return_flat_raw_output_top_logprobs": True, "sampling_logprobs_mode": "support", "cache_salt": "a"},
    **{"priority": 1, "rid": "a", "session_id": "a", "return_routed_experts": True, "routed_experts_start_len": 1},
    **{"bootstrap_host": "a", "bootstrap_port": 1, "bootstrap_room": 1, "routed_dp_rank": 0},
    **{"disagg_prefill_dp_rank": 0, "images_config": {"a": 1}, "mm_processor_kwargs": {"a": 1}},
    **{"watermark": {"enabled": False}, "use_audio_in_video": True, "prompt": "a"},
}
"""Values of OpenAI's fields that SGLang turns into fields which have a row."""

READ_ELSEWHERE = [
    "model",
    "best_of",
    "custom_labels",
    "echo",
    "stream_options",
    "suffix",
    "user",
    "return_cached_tokens_details",
    "return_spec_tokens_details",
    "lora_path",
    "session_params",
    "data_parallel_rank",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "return_meta_info",
    "return_input_ids_in_sglext",
    "return_output_ids_in_sglext",
    "return_flat_raw_top_logprobs_b64",
    "reasoning_effort",
    "thinking",
    "task",
    "continue_final_message",
    "separate_reasoning",
    "stream_reasoning",
    "chat_template_kwargs",
    "max_dynamic_patch",
    "min_dynamic_patch",
    "video_config",
    "input_ids",
]
"""Those that make the prompt, show an answer, are read by one endpoint alone, or by no model of these tests."""
