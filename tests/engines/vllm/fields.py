"""vLLM's rows of the standing test: one per field of `SamplingParams`, and variants; see `tests.engines.fields`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.engines.fields import Row
from tests.engines.plain import ids, prompts
from tests.engines.suites.features import JSON_SCHEMA, NEWLINE

CHUNK = 64  # tokens of one step
LENGTH = 7  # draft tokens, so that the stop of `min_tokens` is the token behind a draft of them
QUOTE, ANSWER = ids("<|quote|><|answer|>")
CAT = ids("<|edit|>" + "the cat sat on the mat and " * 4 + "the cat sat on the")
LOOP = ids("x = 1\ny = 2\n" * 5 + "x = 1\n")
CAT_ENDS = 546  # " the", the ninth token of CAT's answer
PROMPTS: dict[str, list[int]] = {
    "edit": CAT,
    "loop": LOOP,
    "ends": ids("<|document|>def f(x):\n    return x\n<|quote|>def f<|answer|>"),
    "thinks": [*CAT, QUOTE],
}
"""Each fits a step; the second and third end in the model's end of sequence and in the marker of reasoning."""
PREFIX = list(prompts()[0][:100])
"""What stands before a prompt that is computed in several steps."""

ENGINE: dict[str, Any] = {
    "max_num_batched_tokens": CHUNK,
    "block_size": 32,
    "logprobs_mode": "processed_logprobs",
    "reasoning_config": {"reasoning_start_str": "<|quote|>", "reasoning_end_str": "<|answer|>"},
}
"""What both engines are launched with.  Processed log-probabilities are those of the distribution that is sampled, so
that a row whose processors leave one choice shows what they did to all others."""

COLD: dict[str, Any] = {"temperature": 0.25, "logprobs": 4}  # so cold that the text is the likeliest
SCORED: dict[str, Any] = {"logprobs": 2}
SURE: dict[str, Any] = {"ignore_eos": True}
STREAMED: dict[str, Any] = {"output_kind": "DELTA"}
REPETITION: dict[str, Any] = {"max_pattern_size": 8, "min_count": 2}
LONG: dict[str, Any] = {"max_tokens": 32}

ROWS = [
    Row("n", {**COLD, "n": 2}, base=COLD),
    Row("presence_penalty", {**SCORED, "presence_penalty": 1.5}, base=SCORED, prompt="loop"),
    Row("frequency_penalty", {**SCORED, "frequency_penalty": 0.8}, base=SCORED, prompt="loop"),
    Row("repetition_penalty", {**SCORED, "repetition_penalty": 1.4}, base=SCORED),
    Row("temperature", COLD, base={**COLD, "temperature": 0.0}),
    Row("watermarking", fate="no text", why="engines with a watermark refuse speculation when they start"),
    Row("top_p", {**COLD, "top_p": 0.9}, base=COLD),
    Row("top_k", {**COLD, "top_k": 2}, base=COLD),
    Row("min_p", {**COLD, "min_p": 0.2}, base=COLD),
    Row("seed", {"temperature": 1.6, "seed": 7}),
    Row("stop", {"stop": ["1\ny = 2"]}, prompt="loop"),
    Row("stop_token_ids", {"stop_token_ids": [NEWLINE]}, prompt="loop"),
    Row("ignore_eos", SURE, prompt="ends"),
    Row("max_tokens", {"max_tokens": 5}),
    Row("min_tokens", {"min_tokens": 3, "stop_token_ids": [CAT_ENDS]}, base={"min_tokens": 3}),
    Row("logprobs", {"logprobs": 3}),
    Row("prompt_logprobs", {"prompt_logprobs": 2}),
    Row("prompt_logprob_token_ids", {"prompt_logprob_token_ids": [5, 281]}),
    Row(
        "prompt_logprob_start",
        {"prompt_logprob_token_ids": [5, 281], "prompt_logprob_start": 4},
        base={"prompt_logprob_token_ids": [5, 281]},
    ),
    Row("logprob_token_ids", {"logprob_token_ids": [281, 369, 5]}),
    Row("flat_logprobs", {**SCORED, "flat_logprobs": True}, base=SCORED),
    Row("detokenize", {"detokenize": False}),
    Row("skip_special_tokens", {**SURE, "skip_special_tokens": False}, base=SURE, prompt="ends"),
    Row("spaces_between_special_tokens", fate="no text", why="joins what slow tokenizers decoded"),
    Row("include_stop_str_in_output", {"stop": [" sat"], "include_stop_str_in_output": True}, base={"stop": [" sat"]}),
    Row("output_kind", {**STREAMED, "stream_interval": 100}, base={"stream_interval": 100}),
    Row("stream_interval", {**STREAMED, "stream_interval": 100}, base=STREAMED),
    Row("skip_clone", fate="no text", why="says that nobody else holds the parameters"),
    Row("output_text_buffer_length", fate="no text", why="vLLM derives it from `stop`"),
    Row("structured_outputs", {"structured_outputs": {"regex": "(x = [0-9]\n)y = 77"}}, prompt="loop"),
    Row("logit_bias", {"logit_bias": {"281": -100.0}}),
    Row("allowed_token_ids", {"allowed_token_ids": sorted({*LOOP[:8]})}),
    Row("extra_args", fate="no text", why="carries what plug-ins read: the other rows' drafts, too"),
    Row("bad_words", {"bad_words": ["cat", " cat sat"]}),
    Row("skip_reading_prefix_cache", {"skip_reading_prefix_cache": True}),
    Row("thinking_token_budget", {"thinking_token_budget": 3}, prompt="thinks"),
    Row("repetition_detection", {**LONG, "repetition_detection": REPETITION}, base=LONG, prompt="loop"),
    Row("routed_experts_prompt_start", fate="no text", why="cuts what mixtures of experts report beside an answer"),
    Row(
        "trace_decode_token_ids",
        {"trace_decode_token_ids": CAT[5:11]},
        fate="refused",
        why="a text that is given beforehand leaves nothing to verify",
    ),
]

VARIANTS = [
    Row("stop: kept", {"stop": ["y ="], "include_stop_str_in_output": True}, prompt="loop"),
    Row("min_tokens: 5", {"min_tokens": 5, "stop_token_ids": [CAT_ENDS]}, base={"min_tokens": 5}),
    Row("min_tokens: 8", {"min_tokens": 8, "stop_token_ids": [CAT_ENDS]}, base={"min_tokens": 8}),
    Row("min_tokens: past the stop", {"min_tokens": 10, "stop_token_ids": [CAT_ENDS]}, base={"min_tokens": 10}),
    Row("min_tokens: past the end", {"min_tokens": 12}, prompt="ends"),
    Row("max_tokens: 1", {"max_tokens": 1}),
    Row("max_tokens: 2", {"max_tokens": 2}),
    Row("bad_words: the sequence", {"bad_words": ["x = 1\n"]}, prompt="loop"),
    Row("repetition_penalty: sampled", {**COLD, "repetition_penalty": 1.2}, base=COLD),
    Row("frequency_penalty: negative", {"frequency_penalty": -1.5, "logprobs": 1}, base={"logprobs": 1}),
    Row("thinking_token_budget: 0", {"thinking_token_budget": 0}, prompt="thinks"),
    Row("structured_outputs: json", {"structured_outputs": {"json": JSON_SCHEMA}, "max_tokens": 32}),
    Row("structured_outputs: choice", {"structured_outputs": {"choice": ["yes", "no, never"]}}),
    Row("structured_outputs: sampled", {**COLD, "structured_outputs": {"regex": " mat and (the|a) cat"}}, base=COLD),
]
"""Further values of fields whose faults depend on them."""


def rows_of(kind: str, *, variants: bool = True) -> list[Row]:
    """Return the rows of a runner."""
    changes = ON_V1 if kind == "v1" else {}
    rows = [*ROWS, *VARIANTS] if variants else ROWS
    return [replace(row, **changes.get(row.name.partition(":")[0], {})) for row in rows]


def _refused(why: str) -> dict[str, Any]:
    return {"fate": "refused", "why": why}


ON_V1: dict[str, dict[str, Any]] = {
    "min_p": _refused("V1 applies it to no draft"),
    "logit_bias": _refused("V1 applies it to no draft"),
    "prompt_logprob_token_ids": _refused("V1 has it not"),
    "prompt_logprob_start": _refused("V1 has it not"),
    "seed": {"fate": "undrafted", "why": "V1's generators advance by as many numbers as a step draws"},
}
"""What V1 does otherwise."""

NOT: tuple[tuple[str, ...], ...] = (
    # V1 on a CPU has no control for these.
    ("v1", "seed", "chunks"),
    # Without specplug, too, V1 puts the marker that a budget owes to a request that ends into another one's text.
    ("v1", "thinking_token_budget", "beside", "inside"),
    # A grammar's end admits stop ids beside the end of sequence, each with some probability.
    *((kind, "structured_outputs: sampled", "inside") for kind in ("v1", "v2", "v2_async")),
    # vLLM's own speculation confuses these with other requests' log-probabilities.
    *((kind, "logprob_token_ids", "beside") for kind in ("v1", "v2", "v2_async")),
)
"""A runner, the beginning of a row's name, and what its situations are not all of."""

GUARDS = {
    "seed": "specplug_vllm.requests:DraftRules.allow_drafts",
    "min_tokens: 5": "specplug_vllm.requests:DraftRules.cut",
    "thinking_token_budget: 0": "vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder.update_state",
    "logprob_token_ids": "vllm.v1.sample.rejection_sampler:RejectionSampler.forward",
    "min_p": "vllm.sampling_params:SamplingParams._validate_spec_decode",
    "logit_bias": "vllm.sampling_params:SamplingParams._validate_spec_decode",
}
"""By row what makes it hold on V1: a function of ours, one of vLLM's that we hook, or a check of vLLM's."""
