"""Checks of model support: attention must take explicit masks, and state must roll back to an accepted length."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from specplug.errors import EngineError

_ROLLS_BACK = {"full_attention", "sliding_attention"}
_TAKES_MASKS = {"sdpa", "eager"}
_NO_LIMIT = 1 << 20


def check_model(model: Any) -> None:
    """Refuse a model that cannot be served exactly.

    The checks use what the model's class and config declare, never its name.

    Raises:
        EngineError: the model is not decoder-only, keeps state that cannot be rolled back to an accepted length, or has
            attention without explicit masks or positions.
    """
    config = model.config.get_text_config()
    unknown = sorted(set(layer_types(config)) - _ROLLS_BACK)
    attention = config._attn_implementation
    if getattr(model.config, "is_encoder_decoder", False):
        _refuse(config, "an encoder-decoder model", "a decoder-only model", "Serve it without specplug")
    if model._is_stateful or unknown:
        _refuse(
            config,
            f"layers of type {unknown}" if unknown else "recurrent state",
            "full or sliding-window attention, whose cache rolls back to the accepted length",
            "Serve it without specplug",
        )
    if not model._supports_attention_backend or "position_ids" not in inspect.signature(model.forward).parameters:
        _refuse(
            config,
            "attention of the model's own",
            "transformers' attention interface, with explicit masks and positions",
            "Serve it without specplug",
        )
    if attention not in _TAKES_MASKS:
        _refuse(
            config,
            f"attention implementation {attention!r}",
            "'sdpa' or 'eager', which take explicit masks",
            "Load the model with attn_implementation='sdpa'",
        )


def layer_types(config: Any) -> list[str]:
    """Return the attention types of a text config's layers, each once."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        slides = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if slides else "full_attention"]
    return sorted(set(kinds))


def longest_context(config: Any) -> int:
    """Return the longest context, in tokens.

    Rotary embeddings of type "longrope" change for all rows of a batch once any row exceeds the original training
    length, so the context ends there: a row's text must not depend on other rows, nor on its drafts.
    """
    limits = [getattr(config, "max_position_embeddings", None) or _NO_LIMIT]
    for rope in _rope_parameters(config):
        if rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings") or _NO_LIMIT)
    return min(limits)


def _rope_parameters(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary parameters of the model, or those of each layer type."""
    found = getattr(config, "rope_parameters", None) or {}
    parts = [found] if "rope_type" in found else found.values()
    yield from (part for part in parts if isinstance(part, Mapping))


def _refuse(config: Any, found: str, expected: str, remedy: str) -> None:
    raise EngineError.build(
        f"model type {config.model_type!r} cannot be served",
        who="specplug_transformers",
        found=found,
        expected=expected,
        remedy=remedy,
    )
