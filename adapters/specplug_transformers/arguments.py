"""The arguments of `model.generate` that are served, and the refusal, by name, of the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.generation.configuration_utils import GenerationMode

from specplug.errors import EngineError

_MODES = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}
_CACHE = ("cache", "past_key_values")  # its name from transformers 5.24 on, and before
_KEEPS_ALL = {DynamicCache, StaticCache}  # others may round or forget, which changes what `generate` answers
_CHANGES_NO_TEXT = {"use_cache", "cache_position", "logits_to_keep"}
_CHECKED = {"attention_mask", "position_ids", *_CACHE}
_ENCODED = "mm_encoder_outputs"  # by kind, what `generate` makes of images and videos; empty for text
_NOT_SERVED = (
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
    "watermarking_config",
    "is_assistant",
)
_LOWEST_TEMPERATURE = 1e-30


def check_arguments(config: Any, model_kwargs: Mapping[str, Any], rows: int, streamer: Any) -> None:
    """Refuse what would change the text, or the output, and is not served.

    Args:
        config: the `GenerationConfig` that `generate` has prepared.
        model_kwargs: what it has prepared for the forward pass.
        rows: prompts, with those that it has repeated.
        streamer: receives the tokens, or None.

    Raises:
        EngineError: an argument is not served.
    """
    caches = {name: cache for name in _CACHE if (cache := model_kwargs.get(name)) is not None}
    requested = {
        **dict.fromkeys(_other_modes(config), True),
        **{name: getattr(config, name, None) not in (None, False) for name in _NOT_SERVED},
        "guidance_scale": config.guidance_scale not in (None, 1.0),
        "a streamer for several prompts": streamer is not None and rows > 1,
        **{f"{name} that holds a context": cache.get_seq_length() for name, cache in caches.items()},
        **{f"{name} of type {type(cache).__name__}": type(cache) not in _KEEPS_ALL for name, cache in caches.items()},
    }
    found = [name for name, is_requested in requested.items() if is_requested]
    inputs = {name for name, value in model_kwargs.items() if value is not None and value is not False}
    found += [f"{kind} inputs" for kind in model_kwargs.get(_ENCODED) or ()]
    found += sorted(inputs - _CHANGES_NO_TEXT - _CHECKED - {_ENCODED})
    if found:
        expected = "greedy search or sampling of token ids"
        remedy = "Call model.generate without custom_generate"
        raise refusal("these arguments of generate are not supported", ", ".join(found), expected, remedy)
    if config.do_sample and config.temperature is not None and config.temperature < _LOWEST_TEMPERATURE:
        # It takes logits to infinity in the warper, as `generate` would find too.
        expected = f"at least {_LOWEST_TEMPERATURE}"
        remedy = "Set do_sample=False for greedy search"
        raise refusal("the temperature is too low to divide logits by", config.temperature, expected, remedy)


def check_requests(requests: Sequence[Mapping[str, Any]] | None, rows: int) -> None:
    """Refuse fields of other requests than the rows.

    Raises:
        EngineError: they are not one mapping per row.
    """
    if requests is not None and len(requests) != rows:
        expected = f"{rows} mappings, one per row, num_return_sequences of them per prompt"
        remedy = "Give a row without fields an empty mapping"
        raise refusal("specplug_requests does not fit the rows", len(requests), expected, remedy)


def remove_padding(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return each row of `input_ids` [B, L] without its padding.

    Raises:
        EngineError: `attention_mask` hides more than left padding, or `position_ids` count otherwise than from 0.
    """
    attention_mask = model_kwargs.get("attention_mask")
    positions = model_kwargs.get("position_ids")
    kept = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    if kept.shape != input_ids.shape or not bool((kept.cummax(1).values == kept).all()):
        found = f"a mask of shape {tuple(kept.shape)}"
        expected = "zeros in front of ones, one for each input id"
        remedy = "Set the tokenizer's padding_side='left'"
        raise refusal("the attention mask hides more than left padding", found, expected, remedy)
    if positions is not None and not _from_zero(positions, kept):
        expected = "positions from 0 at each row's first token"
        remedy = "Leave position_ids out"
        raise refusal("position_ids are not supported", "other positions", expected, remedy)
    return [ids[mask] for ids, mask in zip(input_ids, kept, strict=True)]


def check_lengths(max_tokens: int, prompts: list[Tensor], max_length: int) -> None:
    """Refuse what may become longer than the longest context.

    Raises:
        EngineError: it may.
    """
    longest = max(map(len, prompts))
    if longest + max_tokens > max_length:
        found = f"a prompt of {longest} tokens and up to {max_tokens} new ones"
        expected = f"at most {max_length} tokens in all"
        remedy = "Lower max_new_tokens or max_length"
        raise refusal("the context would become too long", found, expected, remedy)


def refusal(what: str, found: object, expected: str, remedy: str) -> Exception:
    """Return the error of a call that is not served."""
    return EngineError.build(what, who="speculative_generate", found=found, expected=expected, remedy=remedy)


def _from_zero(positions: Tensor, kept: Tensor) -> bool:
    same_length = positions.shape[-1] == kept.shape[1]
    return same_length and bool(((positions == kept.cumsum(1) - 1) | ~kept).all())


def _other_modes(config: Any) -> list[str]:
    """Return the fields that ask for another way of decoding than greedy search and sampling, or its name."""
    mode = config.get_generation_mode()
    if mode in _MODES:
        return []
    modes = {}
    for name in [name for name, value in vars(config).items() if value is not None]:
        without = copy.copy(config)
        setattr(without, name, None)
        modes[name] = without.get_generation_mode()
    return [name for name in modes if modes[name] != mode] or [mode.value]
