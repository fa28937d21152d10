"""Forward passes of the model over cache rows of different lengths, and their comparison with plain ones at start-up.

A model's attention must take explicit masks, and its state must roll back to an accepted length.  What its class and
config declare does not show whether it attends to later tokens, counts positions differently, or keeps state elsewhere:
the engine would silently serve wrong text for such a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

from specplug.draft_model.cache import RowCache, RowPlaces, cache_argument
from specplug.errors import EngineError, describe
from specplug.seams.support import Range

VERSIONS = Range(engine="transformers", oldest=(5, 16), newest=(5, 24))
"""The oldest and the newest version that `make test-versions` runs."""

_ROLLS_BACK = {"full_attention", "sliding_attention", "conv"}
_TAKES_MASKS = {"sdpa", "eager"}
_NO_LIMIT = 1 << 20
_LENGTHS = (5, 7)  # tokens of the two texts
_LEAST_COSINE = {torch.float32: 0.999, torch.float64: 0.999}
_LEAST_COSINE_HALF = 0.9  # half precision rounds by shape, and may reroute mixtures of experts


class ModelRunner:
    """A Hugging Face causal language model with its own cache.

    Args:
        model: a decoder-only `PreTrainedModel` with "sdpa" or "eager" attention.

    Attributes:
        max_length: longest context, in tokens.
        cache: keys and values of the rows.

    Raises:
        EngineError: the model cannot be served exactly.
    """

    def __init__(self, model: Any) -> None:
        check_model(model)
        self.model: Any = model.eval()
        config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.vocab_size: int = config.vocab_size
        self._embeddings: Tensor = self.model.get_input_embeddings().weight.detach()
        self.max_length = longest_context(config)
        self._layer_types = layer_types(config)
        self._window: int | None = getattr(config, "sliding_window", None)
        self._float_mask = _is_eager(model)
        self.cache = RowCache(config.num_hidden_layers)
        self._with_cache = {cache_argument(model): self.cache, "use_cache": True}

    @torch.no_grad()
    def forward(self, rows: list[int], starts: list[int], token_ids: Tensor, *, keep_logits: bool = True) -> Tensor:
        """Run `token_ids` [B, Q] int64 on the cache rows `rows`, each from its own position in `starts`.

        Return the logits [B, Q, V] float32; without `keep_logits` those of the last column only, [B, 1, V].
        """
        place = RowPlaces.of(rows, starts, token_ids.shape[1], self.device)
        self.cache.begin(place)
        output = self.model(
            input_ids=token_ids,
            attention_mask=self._masks(place),
            position_ids=place.positions.clamp(max=self.max_length - 1),  # padding may lie beyond the last position
            logits_to_keep=0 if keep_logits else 1,
            **self._with_cache,
        )
        logits: Tensor = output.logits
        return logits.float()

    def detach(self) -> None:
        """Forget the model, and free the memory of the cache."""
        self.model = None
        self.cache.free()

    def attach(self, model: Any) -> bool:
        """Serve a model again after `detach`; return false if it has changed so that another runner must."""
        weight = model.get_input_embeddings().weight
        if weight.data_ptr() != self._embeddings.data_ptr() or _is_eager(model) != self._float_mask:
            return False
        self.model = model.eval()
        return True

    def _masks(self, place: RowPlaces) -> Any:
        """Return the 4-d mask that the model uses unchanged, or a dict of one mask per attention type.

        It is None where attention is correct without one, and faster: for rows of one new token that see all their
        columns, and with "sdpa" for rows at the start of their text, where it is causal by default.
        """
        queries = place.positions.shape[1]
        is_even = place.start is not None
        needs_no_mask = is_even and (queries == 1 or (queries == place.columns and not self._float_mask))
        masks: dict[str, Tensor | None] = {}
        for kind in self._layer_types:
            window = self._window if kind == "sliding_attention" else None
            if kind == "conv":
                masks[kind] = None
                continue
            if needs_no_mask and (window is None or place.columns <= window):
                masks[kind] = None
                continue
            column = torch.arange(place.columns, device=self.device)
            position = place.positions[:, None, :, None]
            mask = column <= position
            if window is not None:
                mask = mask & (column > position - window)
            masks[kind] = self._additive(mask) if self._float_mask else mask
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _additive(self, mask: Tensor) -> Tensor:
        zeros = torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device)
        return zeros.masked_fill_(~mask, torch.finfo(self.model.dtype).min)


def _is_eager(model: Any) -> bool:
    return bool(model.config.get_text_config()._attn_implementation == "eager")


def probed_runner(model: Any) -> ModelRunner:
    """Return a runner that gives the logits of a plain forward pass.

    It runs two texts in pieces, from different positions, one after rejected tokens, and compares the last logits.

    Raises:
        EngineError: they do not match, or the installed transformers does not run the model with this cache.
    """
    try:
        runner = ModelRunner(model)
        ids = (3 + 7 * torch.arange(2 * _LENGTHS[1], device=runner.device)).reshape(2, -1) % runner.vocab_size
        rejected = ids[:, :4].clone()
        rejected[0, 2:] = ids[0, :2]
        runner.cache.reserve(2, _LENGTHS[1])
        runner.forward([0, 1], [0, 0], rejected)
        found = runner.forward([1, 0], [4, 2], torch.stack([ids[1, 4:7], ids[0, 2:5]]))[:, -1]
        plain = torch.stack([_plain(model, ids[1, : _LENGTHS[1]]), _plain(model, ids[0, : _LENGTHS[0]])])
    except EngineError:
        raise
    except Exception as error:  # what has moved in transformers may raise anything
        raise EngineError.build(
            f"model type {model.config.model_type!r} does not run with specplug's cache",
            who="specplug_transformers",
            found=f"transformers {transformers.__version__}: {describe(error)}",
            expected=str(VERSIONS),
            remedy=VERSIONS.remedy,
        ) from error
    cosine = float(torch.cosine_similarity(_centred(found), _centred(plain)).min())
    least = _LEAST_COSINE.get(model.dtype, _LEAST_COSINE_HALF)
    if not cosine >= least:
        raise EngineError.build(
            f"model type {model.config.model_type!r} cannot be served",
            who="specplug_transformers",
            found=f"logits with cosine similarity {cosine:.4f} to those of a plain forward pass",
            expected=f"at least {least}: attention to earlier tokens only, and positions that count from 0",
            remedy="Serve it without specplug",
        )
    return runner


@torch.no_grad()
def _plain(model: Any, ids: Tensor) -> Tensor:
    """Return the logits [V] after one text, from a forward pass without a cache."""
    logits: Tensor = model(input_ids=ids[None], use_cache=False).logits
    return logits[0, -1].float()


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(-1, keepdim=True)


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
