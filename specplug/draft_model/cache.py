"""TextCache: keys and values of many texts, each written at positions of its own."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


def cache_argument(model: Any) -> str:
    """Return the name under which a model's `forward` takes its cache: `cache` from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class CachePlace:
    """Where the next forward pass writes, and what it reads; the same for all layers.

    Attributes:
        first, last: the rows of the cache that it computes: first up to but not including last.
        positions: [R, T] int64, the column that each token is written to; that of padding is the last column.
        num_columns: W; columns before it are read.
    """

    first: int
    last: int
    positions: Tensor
    num_columns: int


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The cache of one layer, [S, L + 1, H, D]; nothing reads the last column, to which padding is written."""

    is_compileable = True

    def __init__(self, place: CachePlace, max_texts: int, max_length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place
        self._shape = (max_texts, max_length + 1)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (
            states.new_zeros(*self._shape, states.shape[1], states.shape[3]) for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [R, H, T, D] and return views of [R, H, W, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = self._place
        rows = torch.arange(place.last - place.first, device=key_states.device)[:, None]
        read = []
        for cached, states in ((self.keys, key_states), (self.values, value_states)):
            assert cached is not None
            mine = cached[place.first : place.last]
            mine[rows, place.positions] = states.transpose(1, 2)
            read.append(mine[:, : place.num_columns].transpose(1, 2))
        return read[0], read[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._place.num_columns, 0

    def get_seq_length(self) -> int:
        return 0  # positions and masks are given

    def get_max_length(self) -> int:
        return self._shape[1] - 1


class TextCache(Cache):
    """Keys and values of S texts of at most L tokens; the memory of a layer is taken at its first use."""

    def __init__(self, num_layers: int, max_texts: int, max_length: int) -> None:
        self.place = CachePlace()
        self._own = [_Layer(self.place, max_texts, max_length) for _ in range(num_layers)]
        super().__init__(layers=list(self._own))

    @property
    def num_written(self) -> int:
        """How many layers have been used."""
        return sum(layer.is_initialized for layer in self._own)
