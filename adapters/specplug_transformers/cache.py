"""Key-value cache whose rows advance and roll back independently.

Column c of a row holds the keys and values of that row's position c.  Attention sees a position only through the causal
mask, and a position is always rewritten before it is next seen, so rolling back to an accepted length needs no work:
rejected entries stay beyond the length until they are overwritten.  The same holds for a short convolution, whose state
is its input at the latest positions: this cache keeps its input at all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class RowPlaces:
    """Write positions of one forward pass: the cache row, and the position of the first token, of each batch row.

    Attributes:
        positions: [B, Q] int64, of every input token.
        columns: one more than the largest position.
        is_even: whether all rows write to the same positions.
    """

    def __init__(self, rows: list[int], starts: list[int], queries: int, device: torch.device) -> None:
        firsts = torch.tensor(starts, dtype=torch.int64, device=device)
        self.positions = firsts[:, None] + torch.arange(queries, device=device)
        self.columns = max(starts) + queries
        self.is_even = min(starts) == max(starts)
        self._index = torch.tensor(rows, dtype=torch.int64, device=device)[:, None]
        self._firsts = firsts[:, None]
        self._written = slice(starts[0], starts[0] + queries)
        first = rows[0]
        after = rows[0] + len(rows)
        self._neighbours = slice(first, after) if rows == list(range(first, after)) else None

    def write(self, states: Tensor, stored: Tensor) -> None:
        """Copy the new keys or values [B, H, Q, D] to their places in the stored [R, H, C, D]."""
        if self._neighbours is not None and self.is_even:
            stored[self._neighbours, :, self._written] = states
        else:
            stored[self._index, :, self.positions] = states.transpose(1, 2)

    def view(self, stored: Tensor) -> Tensor:
        """Return [B, H, columns, D] of a stored [R, H, C, D]: a view if the rows are contiguous, else a copy."""
        if self._neighbours is not None:
            return stored[self._neighbours, :, : self.columns]
        return stored[self._index[:, 0], :, : self.columns]

    def read_before(self, stored: Tensor, count: int) -> Tensor:
        """Return what is stored at the `count` positions before the first, [B, H, count, D]; 0 before the text."""
        positions = self._firsts - torch.arange(count, 0, -1, device=self._firsts.device)
        found = stored[self._index, :, positions.clamp(min=0)].transpose(1, 2)
        return found.masked_fill((positions < 0)[:, None, :, None], 0)


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
        size: rows, and positions of each, that are reserved.
    """

    def __init__(self, num_layers: int) -> None:
        self.place = RowPlaces([0], [0], 0, torch.device("cpu"))
        self.size = (0, 0)
        self._written = 0  # columns that any row has written
        self._layers = [_RowLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._layers))

    def begin(self, place: RowPlaces) -> None:
        """Say where the next forward pass writes."""
        self.place = place
        self._written = max(self._written, place.columns)

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for so many rows of so many positions.

        Raises:
            torch.OutOfMemoryError: there is not enough memory on the device; what was reserved before still is.
        """
        size = max(self.size[0], rows), max(self.size[1], columns)
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
        for stored in self._stored():
            stored[row, :, : self._written] = 0.0

    def move(self, source: int, target: int) -> None:
        """Copy one row onto a lower one, so that the rows in use stay contiguous."""
        for stored in self._stored():
            stored[target, :, : self._written] = stored[source, :, : self._written]

    def _stored(self) -> list[Tensor]:
        return [stored for layer in self._layers if layer.is_initialized for stored in (layer.keys, layer.values)]


def _grown(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Return `stored` [R, H, C, D] if it has room; else a larger copy, over-allocated so that growth is rare."""
    old_rows, heads, old_columns, size = stored.shape
    if old_rows >= rows and old_columns >= columns:
        return stored
    more_rows = old_rows if old_rows >= rows else max(rows, old_rows + old_rows // 4)
    more_columns = old_columns if old_columns >= columns else columns + max(64, columns // 4)
    grown = stored.new_zeros(more_rows, heads, more_columns, size)
    grown[:old_rows, :, :old_columns] = stored
    return grown
