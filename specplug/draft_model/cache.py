"""Key-value cache whose rows advance and roll back independently.

Column c of a row holds the keys and values of that row's position c.  Attention sees a position only through the causal
mask, and a position is always rewritten before it is next seen, so rolling back to an accepted length needs no work:
rejected entries stay beyond the length until they are overwritten.  The same holds for a short convolution, whose state
is its input at the latest positions: this cache keeps its input at all of them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


def cache_argument(model: Any) -> str:
    """Return the name under which a model's `forward` takes its cache: `cache` from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@dataclass(eq=False)
class RowPlaces:
    """Where one forward pass of B rows writes, and what it reads; the same for all layers.

    Attributes:
        rows: the cache row of each: contiguous ones as a slice, others as [B] int64.
        positions: [B, Q] int64, the column that each token is written to.
        columns: columns before it are read.
        start: the first position of all rows; None if they differ.
    """

    rows: slice | Tensor
    positions: Tensor
    columns: int
    start: int | None = None

    @classmethod
    def of(cls, rows: list[int], starts: list[int], queries: int, device: torch.device) -> RowPlaces:
        """Return the places of `queries` tokens of each row, from its position in `starts` on."""
        first = rows[0]
        is_contiguous = rows == list(range(first, first + len(rows)))
        firsts = torch.tensor(starts, dtype=torch.int64, device=device)[:, None]
        return cls(
            slice(first, first + len(rows)) if is_contiguous else torch.tensor(rows, device=device),
            firsts + torch.arange(queries, device=device),
            max(starts) + queries,
            starts[0] if min(starts) == max(starts) else None,
        )

    def __post_init__(self) -> None:
        own = torch.arange(len(self.positions), device=self.positions.device)
        self._index = (own if isinstance(self.rows, slice) else self.rows)[:, None]

    def write(self, states: Tensor, stored: Tensor) -> None:
        """Copy the new keys or values [B, H, Q, D] to their places in the stored [R, H, C, D]."""
        if self.start is not None and isinstance(self.rows, slice):
            stored[self.rows, :, self.start : self.start + states.shape[2]] = states
        else:
            self._of_rows(stored)[self._index, :, self.positions] = states.transpose(1, 2)

    def view(self, stored: Tensor) -> Tensor:
        """Return [B, H, columns, D] of a stored [R, H, C, D]: a view if the rows are contiguous, else a copy."""
        return stored[self.rows, :, : self.columns]

    def read_before(self, stored: Tensor, count: int) -> Tensor:
        """Return what is stored at the `count` positions before the first, [B, H, count, D]; 0 before the text."""
        positions = self.positions[:, :1] - torch.arange(count, 0, -1, device=self.positions.device)
        states = self._of_rows(stored)[self._index, :, positions.clamp(min=0)].transpose(1, 2)
        return states.masked_fill((positions < 0)[:, None, :, None], 0)

    def _of_rows(self, stored: Tensor) -> Tensor:
        """Return the part of the memory that `_index` points into."""
        return stored[self.rows] if isinstance(self.rows, slice) else stored


class _RowLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one model layer, [R, H, C, D] each, as large as its owner has reserved.

    A convolution's inputs are its keys, with one head; it has no values.
    """

    def __init__(self, owner: RowCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.keys: Tensor = _grown(key_states[:0, :, :0], *self._owner.size)
        self.values: Tensor = _grown(value_states[:0, :, :0], *self._owner.size)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = self._owner.place
        place.write(key_states, self.keys)
        place.write(value_states, self.values)
        return place.view(self.keys), place.view(self.values)

    def convolve(self, inputs: Tensor, kernel_size: int) -> Tensor:
        """Store a convolution's inputs [B, D, Q]; return them after those that the first one is convolved with."""
        inputs = inputs.transpose(1, 2)[:, None]
        self.update(inputs, inputs[..., :0])
        return torch.cat([self._owner.place.read_before(self.keys, kernel_size - 1), inputs], 2)[:, 0].transpose(1, 2)

    def get_seq_length(self) -> int:
        return 0  # positions and masks are given explicitly


class RowCache(Cache):
    """Cache of all layers; each row has its own length.

    Reserve the memory of a request before its first forward pass, and announce each pass with `begin`.

    Attributes:
        place: where the current forward pass writes.
        size: rows, and positions of each, that there is memory for.
    """

    def __init__(self, num_layers: int, rows: int = 0, columns: int = 0) -> None:
        self.place = RowPlaces(slice(0, 0), torch.zeros(0, 0, dtype=torch.int64), 0)
        self.size = (rows, columns)
        self._written = 0  # columns that any row has written
        self._layers = [_RowLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._layers))

    def begin(self, place: RowPlaces) -> None:
        """Say where the next forward pass writes."""
        self.place = place
        self._written = max(self._written, place.columns)

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for so many rows of so many positions, and for some more, so that growth is rare.

        Raises:
            torch.OutOfMemoryError: there is not enough memory on the device; what was reserved before still is.
        """
        old_rows, old_columns = self.size
        size = (
            old_rows if rows <= old_rows else max(rows, old_rows + old_rows // 4),
            old_columns if columns <= old_columns else columns + max(64, columns // 4),
        )
        for layer in self._layers:
            if layer.is_initialized:
                layer.keys = _grown(layer.keys, *size)
                layer.values = _grown(layer.values, *size)
        self.size = size

    # A convolution finds no state of its own, so that it calls `update_conv_state` for any number of tokens.

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Store a convolution's inputs [B, D, Q] and return what it computes their outputs from, [B, D, more than Q].

        There is no place for a second convolution in one layer, nor for a recurrent state.
        """
        assert state_idx == 0, "a layer with several convolutions"
        return self._layers[layer_idx].convolve(conv_states, kwargs["conv_kernel_size"])

    def free(self) -> None:
        """Free the memory of all rows."""
        self.size = (0, 0)
        self._written = 0
        for layer in self._layers:
            if layer.is_initialized:
                layer.keys = layer.keys[:0, :, :0].clone()
                layer.values = layer.values[:0, :, :0].clone()

    def clear(self, row: int) -> None:
        """Zero a row for its next request.

        Attention gives entries beyond the length weight 0, but 0 times infinity is NaN, so one request's overflow must
        not remain for the next.
        """
        for stored in self.stored():
            stored[row, :, : self._written] = 0.0

    def move(self, source: int, target: int) -> None:
        """Copy one row onto a lower one, so that the rows in use stay contiguous."""
        for stored in self.stored():
            stored[target, :, : self._written] = stored[source, :, : self._written]

    def stored(self) -> list[Tensor]:
        """Return the keys and the values of each layer that has been used, [R, H, C, D] each."""
        return [stored for layer in self._layers if layer.is_initialized for stored in (layer.keys, layer.values)]


def _grown(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Return `stored` [R, H, C, D] if it has room; else a larger copy."""
    old_rows, heads, old_columns, size = stored.shape
    if old_rows >= rows and old_columns >= columns:
        return stored
    grown = stored.new_zeros(max(rows, old_rows), heads, max(columns, old_columns), size)
    grown[:old_rows, :, :old_columns] = stored
    return grown
