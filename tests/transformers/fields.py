"""The standing test's table for transformers: what becomes of each argument of `generate` and of our own requests.

Values that depend on the prompts, or on what the model answers to them, are `Made`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer, CompileConfig, WatermarkingConfig

from specplug.draft_model.cache import cache_argument
from tests.engines.fields import Row
from tests.transformers.conftest import cached_model
from tests.transformers.test_stopping import byte_tokenizer
from tests.transformers.toys import EOS


@dataclass(frozen=True)
class Batch:
    """The prompts of a row's request, [B, L] and their mask, and what the model answers to them by itself."""

    ids: Tensor
    mask: Tensor
    plain: list[list[int]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def at(self, place: int) -> list[int]:
        """Return the token at a place of each answer."""
        return [answer[place] for answer in self.plain]


@dataclass(frozen=True)
class Made:
    """A value that depends on the batch."""

    make: Callable[[Batch], Any]


class Bans(LogitsProcessor):
    """Bans tokens of its own in each row."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, token in enumerate(self._tokens[: len(scores)]):
            scores[row, token] = -torch.inf
        return scores


class CountsPositions(LogitsProcessor):
    """Favours a token that depends on how long the row is, padding included."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, 3 + input_ids.shape[1] % 7] += 5.0
        return scores


class OpenAIPenalty(LogitsProcessor):
    """Subtracts the penalties of the OpenAI API, counted anew for each token of the output."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self._presence, self._frequency, self._prompt_length = presence, frequency, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, ids in enumerate(input_ids.tolist()):
            output = ids[self._prompt_length :]
            for token in set(output):
                scores[row, token] -= self._presence + self._frequency * output.count(token)
        return scores


class StopsAt(StoppingCriteria):
    """Stops each row at a length of its own."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = torch.tensor(lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return input_ids.shape[1] >= self._lengths[: len(input_ids)]


class Streamed(BaseStreamer):  # type: ignore[misc]
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        self.received.append(value.tolist())

    def end(self) -> None:
        self.ended = True


def grammar(batch: Batch) -> Callable[[int, Tensor], list[int]]:
    """Allow each row a few tokens of its own after each token; ask about no other row's text."""

    def allowed(row: int, ids: Tensor) -> list[int]:
        assert torch.equal(ids[: batch.length], batch.ids[row])
        return [3 + (7 * row + int(ids[-1]) + more) % 90 for more in (0, 11, 23)]

    return allowed


class Forgetful(DynamicCache):
    """A cache of a user's own, which may keep less than all positions."""


def holding_a_context() -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
    return cache


def no_text(why: str, **fields: Any) -> list[Row]:
    return [Row(name, {name: value}, "no text", why) for name, value in fields.items()]


def refused(why: str, *names: str, value: Any = True, **others: Any) -> list[Row]:
    return [Row(name, {name: value, **others}, "refused", why) for name in names]


SAMPLED = {"do_sample": True, "top_k": 0}
EARLY_END = {"eos_token_id": Made(lambda batch: [EOS, *batch.at(2)])}
MODES = "another way of decoding"
ASSISTANTS = "for assistants, which are refused"
BEAMS = "for beams, which are refused"
RUNNING = "how transformers computes, which is not used"

CONFIG = [
    *no_text(ASSISTANTS, assistant_confidence_threshold=0.5, assistant_ensemble_weight=0.5, assistant_lookbehind=3),
    *no_text(ASSISTANTS, target_lookbehind=3, max_matching_ngram_size=3, num_assistant_tokens=3),
    *no_text(ASSISTANTS, num_assistant_tokens_schedule="heuristic", speculation_type="dflash"),
    *no_text(BEAMS, diversity_penalty=0.5, early_stopping=True, length_penalty=2.0, low_memory=True),
    *no_text(RUNNING, cache_config={"nbits": 2}, compile_config=CompileConfig(), continuous_batching_config={}),
    *no_text(RUNNING, cache_implementation="static", max_cache_len=64, disable_compile=True, use_cache=False),
    *no_text(RUNNING, prefill_chunk_size=4),
    *no_text("shifts all logits of a position alike", renormalize_logits=True),
    *no_text("returns an object", return_dict_in_generate=True),
    *no_text("for encoder-decoder models, which are refused", decoder_start_token_id=5),
    *no_text("says who wrote the file", transformers_version="1"),
    *refused(MODES, "num_beams", "num_beam_groups", value=2, num_beams=2),
    *refused(MODES, "prompt_lookup_num_tokens", "assistant_early_exit", value=1),
    *refused(MODES, "use_mtp"),
    *refused(MODES, "dola_layers", value="low"),
    *refused(MODES, "penalty_alpha", value=0.6, top_k=4),
    *refused(MODES, "constraints", "force_words_ids", value=[[5]], num_beams=2),
    *refused("its criterion reads one row's scores", "is_assistant"),
    *refused("drafts have no such output", "output_attentions", "output_hidden_states", "output_logits"),
    *refused("drafts have no such output", "output_scores", return_dict_in_generate=True),
    *refused("needs a second forward pass", "guidance_scale", value=2.0),
    *refused("rewrites the prompt", "token_healing", tokenizer=Made(lambda _: byte_tokenizer())),
    *refused("depends on how tokens are drawn", "watermarking_config", value=WatermarkingConfig()),
    Row("bad_words_ids", {"bad_words_ids": Made(lambda batch: [[token] for token in batch.at(1)])}),
    Row("begin_suppress_tokens", {"begin_suppress_tokens": Made(lambda batch: batch.at(0))}),
    Row("bos_token_id", {"bos_token_id": 9}, prompt="none"),
    Row("do_sample", {"do_sample": True, "typical_p": 0.01, "top_k": 0}),
    Row("encoder_no_repeat_ngram_size", {"encoder_no_repeat_ngram_size": 1}),
    Row("encoder_repetition_penalty", {"encoder_repetition_penalty": 3.0}),
    Row("eos_token_id", EARLY_END),
    Row("epsilon_cutoff", {**SAMPLED, "epsilon_cutoff": 0.99}, base=SAMPLED),
    Row("eta_cutoff", {"do_sample": True, "top_k": 2, "eta_cutoff": 0.99}, base={"do_sample": True, "top_k": 2}),
    Row("exponential_decay_length_penalty", {"exponential_decay_length_penalty": (1, 9.0)}),
    Row("forced_bos_token_id", {"forced_bos_token_id": 40}, prompt="one token"),
    Row("forced_eos_token_id", {"forced_eos_token_id": 40}),
    Row("max_length", {"max_length": Made(lambda batch: batch.length + 4), "max_new_tokens": None}),
    Row("max_new_tokens", {"max_new_tokens": 6}),
    Row("max_time", {"max_time": 0.0}),
    Row("min_length", {**EARLY_END, "min_length": Made(lambda batch: batch.length + 7)}, base=EARLY_END),
    Row("min_new_tokens", {**EARLY_END, "min_new_tokens": 7}, base=EARLY_END),
    Row("min_p", {**SAMPLED, "min_p": 1.0}, base=SAMPLED),
    Row("no_repeat_ngram_size", {"no_repeat_ngram_size": 1}),
    Row("num_return_sequences", {"do_sample": True, "top_k": 1, "num_return_sequences": 3}, base={"top_k": 1}),
    Row("pad_token_id", {**EARLY_END, "pad_token_id": 7}, base=EARLY_END),
    Row(
        "remove_invalid_values",
        {
            "sequence_bias": Made(lambda batch: [[[token], float("nan")] for token in set(batch.at(1))]),
            "remove_invalid_values": True,
        },
    ),
    Row("repetition_penalty", {"repetition_penalty": 1.6}),
    Row("sequence_bias", {"sequence_bias": Made(lambda batch: [[[token], -9.0] for token in set(batch.at(1))])}),
    Row(
        "stop_strings",
        {
            "stop_strings": Made(
                lambda batch: [byte_tokenizer().convert_ids_to_tokens(token) for token in batch.at(2)]
            ),
            "tokenizer": Made(lambda _: byte_tokenizer()),
        },
    ),
    Row("suppress_tokens", {"suppress_tokens": Made(lambda batch: batch.at(1))}),
    Row("temperature", {**SAMPLED, "temperature": 1e-4}, base=SAMPLED),
    Row("top_h", {**SAMPLED, "top_h": 1e-3}, base=SAMPLED),
    Row("top_k", {"do_sample": True, "top_k": 1}, base=SAMPLED),
    Row("top_p", {**SAMPLED, "top_p": 1e-6}, base=SAMPLED),
    Row("typical_p", {**SAMPLED, "typical_p": 0.01}, base=SAMPLED),
]
"""Of `GenerationConfig`."""

CACHE = cache_argument(LlamaForCausalLM)
FORWARD = "it changes the forward pass"
GUIDANCE = "for guidance, which is refused"
DROPPED = "transformers does not hand it on"

ARGUMENTS = [
    Row("inputs", {"inputs": Made(lambda batch: batch.ids + batch.mask), "input_ids": None}),
    Row("input_ids", {"input_ids": Made(lambda batch: batch.ids + batch.mask)}),
    Row("attention_mask", {"attention_mask": Made(lambda batch: batch.mask * (torch.arange(batch.length) > 4))}),
    Row("generation_config", {"generation_config": GenerationConfig(repetition_penalty=1.6, pad_token_id=2)}),
    Row("logits_processor", {"logits_processor": Made(lambda batch: LogitsProcessorList([Bans(batch.at(1))]))}),
    Row(
        "stopping_criteria",
        {"stopping_criteria": Made(lambda batch: StoppingCriteriaList([StopsAt(ends(batch))]))},
    ),
    Row("prefix_allowed_tokens_fn", {"prefix_allowed_tokens_fn": Made(grammar)}),
    Row("streamer", {"streamer": Made(lambda _: Streamed())}),
    *no_text("for stop strings", tokenizer=Made(lambda _: byte_tokenizer())),
    *no_text("for functions of the hub", trust_remote_code=True),
    *no_text(GUIDANCE, negative_prompt_ids=torch.ones(1, 3), negative_prompt_attention_mask=torch.ones(1, 3)),
    *no_text("the last position's logits are read", logits_to_keep=2),
    *refused(DROPPED, "synced_gpus"),
    *refused(DROPPED, "assistant_model", value=Made(lambda _: cached_model("llama"))),
    *refused(DROPPED, "assistant_tokenizer", value=Made(lambda _: byte_tokenizer())),
    *refused("it is ours", "custom_generate", value="owner/name"),
    *refused(FORWARD, "position_ids", value=Made(lambda batch: batch.mask.cumsum(1) + 6)),
    *refused(FORWARD, CACHE, value=Made(lambda _: holding_a_context())),
    *refused(FORWARD, "inputs_embeds", value=Made(lambda batch: torch.ones(len(batch), batch.length, 32))),
    *refused(FORWARD, "labels", "token_type_ids", value=Made(lambda batch: batch.mask)),
    *refused(FORWARD, "encoder_attention_mask", value=Made(lambda batch: batch.mask)),
    *refused(FORWARD, "encoder_hidden_states", value=Made(lambda batch: torch.ones(len(batch), 3, 32))),
]
"""Of `generate` itself, and of the forward passes of two models, which it takes too."""


def ends(batch: Batch) -> list[int]:
    return [batch.length + 2 + 3 * row for row in range(len(batch))]


VARIANTS = [
    Row("logits_processor by length", {"logits_processor": LogitsProcessorList([CountsPositions()])}),
    Row(
        "stopping_criteria without an end of sequence",
        {
            "stopping_criteria": Made(lambda batch: StoppingCriteriaList([StopsAt(ends(batch))])),
            "eos_token_id": None,
        },
    ),
    Row(
        "prefix_allowed_tokens_fn, num_return_sequences",
        {
            "prefix_allowed_tokens_fn": lambda row, ids: [3 + (int(ids[-1]) + more) % 90 for more in (0, 11, 23)],
            "do_sample": True,
            "top_k": 1,
            "num_return_sequences": 3,
        },
    ),
    Row(
        "stopping_criteria of a greater length",
        {"stopping_criteria": Made(lambda batch: StoppingCriteriaList([MaxLengthCriteria(batch.length + 12)]))},
    ),
    Row(f"{CACHE} of type Forgetful", {CACHE: Made(lambda _: Forgetful())}, "refused", FORWARD),
    Row("repetition_penalty below 1", {"repetition_penalty": 0.7, "suppress_tokens": [EOS]}),
]
"""Further values of some of them."""


def both(ours: dict[str, Any], theirs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return parameters of our request and `generate`'s for the same, by default those."""
    return {"ours": ours, "theirs": ours if theirs is None else theirs}


def penalty(presence: float, frequency: float) -> Made:
    return Made(lambda batch: LogitsProcessorList([OpenAIPenalty(presence, frequency, batch.length)]))


RANDOM = both({"temperature": 1.0}, SAMPLED)
LIKELY_END = {"sequence_bias": [[[EOS], 9.0]]}
FIRST = Made(lambda batch: batch.at(2)[:1])

PARAMS = [
    Row("max_tokens", both({"max_tokens": 6}, {"max_new_tokens": 6})),
    Row("temperature", both({"temperature": 1e-4}, {**SAMPLED, "temperature": 1e-4}), base=RANDOM),
    Row("top_k", both({"temperature": 1.0, "top_k": 1}, {"do_sample": True, "top_k": 1}), base=RANDOM),
    Row("top_p", both({"temperature": 1.0, "top_p": 1e-6}, {**SAMPLED, "top_p": 1e-6}), base=RANDOM),
    Row("min_p", both({"temperature": 1.0, "min_p": 1.0}, {**SAMPLED, "min_p": 1.0}), base=RANDOM),
    Row("seed", both({"seed": 5}, {}), "no text", "of greedy answers; test_seeds.py has the others"),
    Row("repetition_penalty", both({"repetition_penalty": 1.6})),
    Row("presence_penalty", both({"presence_penalty": 4.0}, {"logits_processor": penalty(4.0, 0.0)})),
    Row(
        "frequency_penalty",
        both({"frequency_penalty": 3.0, "presence_penalty": -1.0}, {"logits_processor": penalty(-1.0, 3.0)}),
    ),
    Row(
        "logit_bias",
        both(
            {"logit_bias": Made(lambda batch: dict.fromkeys(batch.at(1), -9.0))},
            {"sequence_bias": Made(lambda batch: [[[token], -9.0] for token in set(batch.at(1))])},
        ),
    ),
    Row(
        "bad_words",
        both(
            {"bad_words": Made(lambda batch: [answer[1:3] for answer in batch.plain])},
            {"bad_words_ids": Made(lambda batch: [answer[1:3] for answer in batch.plain])},
        ),
    ),
    Row(
        "min_tokens",
        both({"min_tokens": 7, "logit_bias": {EOS: 9.0}}, {"min_new_tokens": 7, **LIKELY_END}),
        base=both({"logit_bias": {EOS: 9.0}}, LIKELY_END),
    ),
    Row(
        "allowed_tokens",
        both(
            {"allowed_tokens": Made(lambda batch: grammar(batch))},
            {"prefix_allowed_tokens_fn": Made(lambda batch: lambda _row, ids: grammar(batch)(0, ids))},
        ),
    ),
    Row(
        "stop",
        both(
            {"stop": Made(lambda batch: [byte_tokenizer().decode(batch.at(2)[:1])])},
            {
                "stop_strings": Made(lambda batch: byte_tokenizer().convert_ids_to_tokens(batch.at(2)[:1])),
                "tokenizer": Made(lambda _: byte_tokenizer()),
            },
        ),
    ),
    Row(
        "stop_token_ids",
        both({"stop_token_ids": FIRST}, {"eos_token_id": Made(lambda batch: [EOS, *batch.at(2)[:1]])}),
    ),
    Row(
        "ignore_eos",
        both({"ignore_eos": True, "logit_bias": {EOS: 9.0}}, {"eos_token_id": None, **LIKELY_END}),
        base=both({"logit_bias": {EOS: 9.0}}, LIKELY_END),
    ),
]
"""Of `SamplingParams`, beside what `generate` takes for the same."""

REQUEST = [
    Row(
        "prompt",
        both(
            {"prompt": Made(lambda batch: (batch.ids + 1)[0].tolist())},
            {"input_ids": Made(lambda batch: batch.ids + 1)},
        ),
    ),
    Row(
        "processors",
        both(
            {"processors": Made(lambda batch: Bans(batch.at(1)))},
            {"logits_processor": Made(lambda batch: LogitsProcessorList([Bans(batch.at(1))]))},
        ),
    ),
    Row(
        "stop_when",
        both({"stop_when": Made(lambda batch: lambda ids: len(ids) >= batch.length + 4)}, {"max_new_tokens": 4}),
    ),
    Row("specplug", both({"specplug": {"num_speculative_tokens": 4}}, {}), "no text", "decides about drafts alone"),
    Row("request_id", both({"request_id": "mine"}, {}), "no text", "a name"),
]
"""Of `GenerateRequest`, without its `SamplingParams`."""

TOGETHER = [
    Row(
        "minimum, stop, penalty, bad word",
        both(
            {"min_tokens": 4, "stop_token_ids": FIRST, "repetition_penalty": 0.8, "bad_words": [[30]]},
            {
                "min_new_tokens": 4,
                "eos_token_id": Made(lambda batch: [EOS, *batch.at(2)[:1]]),
                "repetition_penalty": 0.8,
                "bad_words_ids": [[30]],
            },
        ),
    )
]
"""Several fields of ours at once."""
