"""DraftModel: one forward pass of a causal language model over new tokens of many texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specplug.errors import PluginError, SpecplugError, first_line

COLUMN_STEP = 128
"""Attention reads a multiple of this many columns, so that few shapes occur."""


class DraftModel:
    """A causal language model of Hugging Face, and the key-value caches of S texts.

    Its memory does not grow: `warm_up` takes all of it.

    Args:
        path: a folder, or a model id at Hugging Face.
        max_texts: S.
        max_length: L, the maximum number of tokens of a text; at most the model's own limit.
        device: where it runs.
        dtype: of weights and caches; None for the checkpoint's, and float32 on a CPU.
        module: the model, if it is loaded already.

    Raises:
        PluginError: the model cannot be loaded, or it is of a kind that has no key-value cache for each token.
    """

    def __init__(
        self,
        path: str,
        *,
        max_texts: int,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype | None = None,
        module: Any = None,
    ) -> None:
        from specplug.draft_model.cache import RowCache, RowPlaces, cache_argument  # imports transformers

        chosen = torch.float32 if dtype is None and device.type == "cpu" else dtype
        self.path = path
        self.device = device
        self.max_texts = max_texts
        self._model = (module or _load(path, "auto" if chosen is None else chosen)).to(device).eval()
        text = self._model.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        """Columns of the logits; a tokenizer may have fewer ids."""
        self.max_length: int = min(max_length, getattr(text, "max_position_embeddings", None) or max_length)
        self.num_parameters = sum(parameter.numel() for parameter in self._model.parameters())
        self._windows = attention_windows(path, text)
        self._num_shared: int = getattr(text, "num_kv_shared_layers", None) or 0
        # padding is written to the last column, which nothing reads
        self._cache = RowCache(text.num_hidden_layers, max_texts, self.max_length + 1)
        self._places: Any = RowPlaces
        self._with_cache = {cache_argument(self._model): self._cache, "use_cache": True}

    def warm_up(self) -> None:
        """Run once, which allocates all caches.

        Raises:
            PluginError: a layer has written no keys and values.
        """
        zeros = torch.zeros(self.max_texts, dtype=torch.int64, device=self.device)
        self.forward(zeros[:, None], zeros, zeros)
        written = len(self._cache.stored()) // 2 + self._num_shared
        num_layers = len(self._cache.layers)
        if written < num_layers:
            raise _cannot_roll_back(self.path, f"keys and values of {written} of {num_layers} layers")

    @property
    def cache_elements(self) -> int:
        """Elements of the keys and values of one token, after `warm_up`."""
        return sum(stored.shape[1] * stored.shape[3] for stored in self._cache.stored())

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, starts: Tensor, counts: Tensor, first: int = 0, longest: int | None = None
    ) -> Tensor:
        """Append tokens to the texts in rows `first` to `first` + R, and return the logits after each one's last.

        Reads nothing back from the device.

        Args:
            ids: [R, T] int64, the new tokens, aligned to the right; entries before the newest `counts` are padding.
            starts: [R] int64, how many tokens of each text stay in its cache, before the new ones.
            counts: [R] int64, the number of new tokens, at most T; 0 for a row that is left alone.
            longest: an upper bound of starts + counts; by default `max_length`.

        Returns:
            [R, V], meaningless where `counts` is 0.
        """
        num_rows, num_new = ids.shape
        offsets = torch.arange(num_new, device=self.device) - num_new + counts[:, None]
        is_token = offsets >= 0
        positions = (starts[:, None] + offsets).clamp(min=0)
        longest = self.max_length if longest is None else longest
        columns = min(self.max_length, -(-longest // COLUMN_STEP) * COLUMN_STEP)
        rows = slice(first, first + num_rows)
        self._cache.begin(self._places(rows, torch.where(is_token, positions, self.max_length), columns))
        logits: Tensor = self._model(
            input_ids=torch.where(is_token, ids, 0),
            position_ids=torch.where(is_token, positions, 0),
            attention_mask=self._masks(torch.where(is_token, positions, 0)),
            logits_to_keep=1,
            **self._with_cache,
        ).logits
        return logits[:, -1]

    def _masks(self, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """Return [R, 1, T, W] bool, true for the columns that each token sees, by kind of layer if there are more."""
        columns = torch.arange(self._cache.place.columns, device=self.device)
        before = columns <= positions[:, None, :, None]
        masks = {
            kind: before if window is None else before & (columns > positions[:, None, :, None] - window)
            for kind, window in self._windows.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))


def attention_windows(path: str, config: Any) -> dict[str, int | None]:
    """Return how far back each kind of layer sees; None for no limit.

    `config` is the configuration of the text model of `path`.

    Raises:
        PluginError: a kind of layer keeps a state instead of keys and values.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"all": window}
    if not kinds <= {"full_attention", "sliding_attention"}:
        raise _cannot_roll_back(path, f"layers of the kinds {', '.join(sorted(kinds))}")
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def _cannot_roll_back(path: str, found: str) -> SpecplugError:
    return PluginError.build(
        "cannot draft with this model",
        who=path,
        found=found,
        expected="full_attention and sliding_attention in all layers, whose caches can be rolled back",
        remedy="Choose a draft model with plain attention",
    )


def _load(path: str, dtype: torch.dtype | str) -> Any:
    with errors_of_libraries(path, "cannot load the draft model"):
        from transformers import AutoModelForCausalLM

        # transformers loads with several threads, but in a forked process torch's first parallel operation must come
        # from one thread alone: two at a time find "Invalid thread pool!".
        torch.set_num_threads(torch.get_num_threads())
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")


@contextmanager
def errors_of_libraries(path: str, what: str, kind: type[SpecplugError] = PluginError) -> Iterator[None]:
    """Turn whatever hub clients, configurations and architectures raise into an error about the model `path`."""
    try:
        yield
    except SpecplugError:
        raise
    except Exception as error:
        is_missing = path.startswith(("/", ".", "~")) and not Path(path).exists()
        raise kind.build(
            what,
            who=path,
            found="no such folder" if is_missing else first_line(error),
            expected="a folder or a model id of a causal language model that transformers loads",
            remedy="Check the name, or download it first",
        ) from error
