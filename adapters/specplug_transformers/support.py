"""Checks of support: of the installed transformers, whose seams are probed, and of models.

A model's attention must take explicit masks, and its state must roll back to an accepted length.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specplug.errors import EngineError
from specplug.seams.support import Range

VERSIONS = Range(engine="transformers", oldest=(5, 16), newest=(5, 24))
"""The oldest and the newest version that `make test-versions` runs."""


@functools.cache
def require_seams() -> None:
    """Refuse to start on a transformers version whose seams have moved.  Probes once per process.

    Raises:
        EngineError: a seam is missing.
    """
    import transformers

    moved = moved_seams()
    if moved:
        raise EngineError.build(
            f"transformers has moved: {', '.join(moved)}",
            who="specplug_transformers",
            found=f"transformers {transformers.__version__}",
            expected=str(VERSIONS),
            remedy=VERSIONS.remedy,
        )


def moved_seams() -> list[str]:
    """Return the names of the seams that do not hold in the installed transformers."""
    return [name for name, holds in _PROBES.items() if not _holds(holds)]


def _holds(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except Exception:  # a moved seam may raise anything
        return False


def _cache_hands_over_to_layers() -> bool:
    import torch

    from specplug_transformers.cache import RowCache, RowPlaces

    cache = RowCache(1)
    cache.place = RowPlaces([1], [0], 2, torch.device("cpu"))
    states = torch.ones(1, 1, 2, 3)
    keys, values = cache.update(states, 2 * states, 0)
    return torch.equal(keys, states) and torch.equal(values, 2 * states)


def _prepared_masks_are_kept() -> bool:
    import torch
    from transformers import LlamaConfig, masking_utils

    from specplug_transformers.cache import RowCache

    config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1, vocab_size=4)
    config._attn_implementation = "sdpa"
    mask = torch.ones(1, 1, 2, 3, dtype=torch.bool)
    is_kept = masking_utils.create_causal_mask(config, torch.zeros(1, 2, 4), mask, None) is mask
    return is_kept and masking_utils.create_causal_mask(config, torch.zeros(1, 1, 4), None, RowCache(1)) is None


def _models_declare_what_they_can() -> bool:
    from transformers import PreTrainedModel

    return isinstance(PreTrainedModel._is_stateful, bool) and hasattr(PreTrainedModel, "_supports_attention_backend")


_PROBES: dict[str, Callable[[], bool]] = {
    "Cache.update calls the layers of Cache(layers=...)": _cache_hands_over_to_layers,
    "4-d attention masks are used unchanged": _prepared_masks_are_kept,
    "PreTrainedModel._is_stateful and ._supports_attention_backend": _models_declare_what_they_can,
}


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
