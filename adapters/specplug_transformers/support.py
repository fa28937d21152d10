"""Supported versions of transformers, and checks of a model by what it declares.

A model's attention must take explicit masks, and its state must roll back to an accepted length.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from specplug.errors import EngineError
from specplug.seams.support import Range

VERSIONS = Range(engine="transformers", oldest=(5, 16), newest=(5, 24))
"""The oldest and the newest version that `make test-versions` runs."""


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
    without = "Serve it without specplug"
    if getattr(model.config, "is_encoder_decoder", False):
        raise _refusal(config, "an encoder-decoder model", "a decoder-only model", without)
    if model._is_stateful or unknown:
        found = f"layers of type {unknown}" if unknown else "recurrent state"
        expected = "full or sliding-window attention, whose cache rolls back to the accepted length"
        raise _refusal(config, found, expected, without)
    if not model._supports_attention_backend or "position_ids" not in inspect.signature(model.forward).parameters:
        expected = "transformers' attention interface, with explicit masks and positions"
        raise _refusal(config, "attention of the model's own", expected, without)
    if config._attn_implementation not in _TAKES_MASKS:
        found = f"attention implementation {config._attn_implementation!r}"
        remedy = "Load the model with attn_implementation='sdpa'"
        raise _refusal(config, found, "'sdpa' or 'eager', which take explicit masks", remedy)


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
    found = getattr(config, "rope_parameters", None) or {}
    for rope in [found] if "rope_type" in found else found.values():  # the model's, or those of each layer type
        if isinstance(rope, Mapping) and rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings") or _NO_LIMIT)
    return min(limits)


def _refusal(config: Any, found: str, expected: str, remedy: str) -> Exception:
    what = f"model type {config.model_type!r} cannot be served"
    return EngineError.build(what, who="specplug_transformers", found=found, expected=expected, remedy=remedy)
