"""DeviceDrawing: the choices of a step's drafts, in tensors that stay where they are."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug_crosstok.drawing import Common, choose, uniforms


class DeviceDrawing:
    """Chooses ids for the first R rows of a draft model's cache.

    Args:
        common: the common ids, whose confidence may change in place.
        is_restricted: whether all rows draft common ids only.
        max_rows, num_drafted: rows, and n, the most ids of a draft.
        states: whether drafts state the distribution that common ids are drawn from.
        seed: of the random numbers.

    Attributes:
        temperature: [rows] float32, to be set before a draft; 0 for rows that draw nothing.
        keys: [rows] int64, to be set before a draft, different for each.
        is_common, levels, probabilities: [rows, n] bool, int64 and float64, see `Choice`.
        logits: [rows, n, Vd] float32; None if nothing is stated.
    """

    def __init__(
        self, common: Common, *, is_restricted: bool, max_rows: int, num_drafted: int, states: bool, seed: int
    ) -> None:
        device = common.ids.device

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(max_rows, *shape, dtype=dtype, device=device)

        self._common, self._seed = common, seed
        self._restricted = zeros(dtype=torch.bool).fill_(is_restricted)
        self.temperature, self.keys = zeros(dtype=torch.float32), zeros(dtype=torch.int64)
        self.is_common, self.levels = (zeros(num_drafted, dtype=kind) for kind in (torch.bool, torch.int64))
        self.probabilities = zeros(num_drafted, dtype=torch.float64)
        self.logits = zeros(num_drafted, len(common.ids), dtype=torch.float32) if states else None

    def choose(self, num_rows: int, step: Tensor, logits: Tensor) -> Tensor:
        """Choose the ids [R] int64 of a step, [1] int64, by logits [R, V]."""
        numbers = None if self.logits is None else uniforms(self._seed, self.keys[:num_rows], step)
        restricted, temperature = self._restricted[:num_rows], self.temperature[:num_rows]
        choice = choose(self._common, restricted, temperature, logits, numbers)
        for held, new in (
            (self.is_common, choice.is_common),
            (self.levels, choice.levels),
            (self.probabilities, choice.probabilities.double()),
            (self.logits, choice.logits),
        ):
            if held is not None and new is not None:
                held[:num_rows].index_copy_(1, step, new[:, None])
        return choice.ids
