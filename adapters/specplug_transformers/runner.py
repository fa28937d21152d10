"""Runs the model over rows of differing lengths, and refuses models whose state cannot be rolled back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug_transformers.cache import Place, RowCache

_ROLLS_BACK = {"full_attention", "sliding_attention"}


class ModelRunner:
    """A Hugging Face causal language model with its own cache.

    Args:
        model: a decoder-only `PreTrainedModel` with "sdpa" or "eager" attention.
        max_rows: most requests at a time.
        max_columns: longest context, room for drafts included.
    """

    def __init__(self, model: Any, max_rows: int, max_columns: int) -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.vocab_size: int = config.vocab_size
        self._last_position: int = getattr(config, "max_position_embeddings", max_columns) - 1
        self._layer_types = _layer_types(config)
        self._window: int | None = getattr(config, "sliding_window", None)
        self._float_mask = _attention(model) == "eager"
        self._cache = RowCache(config.num_hidden_layers, max_rows, max_columns)

    @torch.inference_mode()
    def forward(self, rows: list[int], starts: list[int], token_ids: Tensor, *, keep_logits: bool = True) -> Tensor:
        """Feed `token_ids` [B, Q] int64 to the cache rows `rows`, each from its own position `starts`.

        Returns the logits [B, Q, V] float32, or those of the last column only, [B, 1, V], without `keep_logits`.
        """
        queries = token_ids.shape[1]
        first = torch.tensor(starts, dtype=torch.int64, device=self.device)
        positions = first[:, None] + torch.arange(queries, device=self.device)
        self._cache.place = Place(rows, positions, max(starts) + queries)
        output = self.model(
            input_ids=token_ids,
            attention_mask=self._masks(positions, max(starts) + queries),
            position_ids=positions.clamp(max=self._last_position),  # padding may lie beyond the last position
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=0 if keep_logits else 1,
        )
        logits: Tensor = output.logits
        return logits.float()

    def move(self, source: int, target: int) -> None:
        """Move a row's context to another row of the cache."""
        self._cache.move(source, target)

    def _masks(self, positions: Tensor, columns: int) -> Any:
        """Return the 4-d mask(s) that the model takes as they are: one, or one per attention type."""
        column = torch.arange(columns, device=self.device)
        seen = column <= positions[:, None, :, None]
        masks = {}
        for kind in self._layer_types:
            mask = seen
            if kind == "sliding_attention":
                assert self._window is not None
                mask = seen & (column > positions[:, None, :, None] - self._window)
            masks[kind] = self._additive(mask) if self._float_mask else mask
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _additive(self, mask: Tensor) -> Tensor:
        lowest = torch.finfo(self.model.dtype).min
        return torch.where(mask, 0.0, lowest).to(self.model.dtype)


def _layer_types(config: Any) -> list[str]:
    """Return the attention types of the model's layers, each once.

    Raises:
        EngineError: some layers keep a state that cannot be rolled back to an accepted length.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        slides = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if slides else "full_attention"]
    foreign = sorted(set(kinds) - _ROLLS_BACK)
    if foreign or getattr(config, "is_encoder_decoder", False):
        raise EngineError.build(
            f"model type {config.model_type!r} cannot be served",
            who="specplug_transformers",
            found=f"layers of type {foreign}" if foreign else "an encoder-decoder model",
            expected="a decoder-only model with full or sliding-window attention",
            remedy="Recurrent state cannot be rolled back to the accepted length; serve it without specplug",
        )
    return sorted(set(kinds))


def _attention(model: Any) -> str:
    name = getattr(model.config, "_attn_implementation", "sdpa")
    if name not in ("sdpa", "eager"):
        raise EngineError.build(
            "unsupported attention implementation",
            who="specplug_transformers",
            found=repr(name),
            expected="'sdpa' or 'eager', which take explicit masks",
            remedy="Load the model with attn_implementation='sdpa'",
        )
    return str(name)
