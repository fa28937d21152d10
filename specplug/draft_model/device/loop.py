"""DraftLoop: the forward passes and choices of one step's drafts, over tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from specplug.draft_model.device.graphs import Graphs
from specplug.draft_model.device.texts import Missing
from specplug.draft_model.model import COLUMN_STEP, DraftModel

NUM_MISSING = 8
"""The most missing ids of a text that are computed in the pass before the first draft token; more take more steps."""

Choose = Callable[[int, Tensor, Tensor], Tensor]
"""`choose(num_rows, step [1] int64, logits [R, V]) -> [R] int64`: the ids that the first R rows draft."""


class DraftLoop:
    """Drafts up to n ids for the first R rows of the model's cache.

    A GPU runs each forward pass and the choice after it as one graph, for the next larger of a few sizes.

    Args:
        model: the draft model.
        choose: chooses each next id; its tensors stay where they are, as those of the loop do.
        num_drafted: n.

    Attributes:
        drafted: [rows, n] int64, the ids.
    """

    def __init__(self, model: DraftModel, choose: Choose, num_drafted: int) -> None:
        self._model, self._choose = model, choose
        self._graphs = Graphs(model.device, model.path)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=model.device)

        rows = model.max_texts
        self.drafted = zeros(rows, num_drafted)
        self._missing = Missing(zeros(rows, NUM_MISSING), zeros(rows), zeros(rows))
        self._chosen, self._next, self._active, self._step = zeros(rows), zeros(rows), zeros(rows), zeros(1)

    def capture(self) -> None:
        """Capture all graphs, the largest first, which share their memory."""
        for num_rows in reversed(sizes(self._model.max_texts, 1)):
            for longest in reversed(sizes(self._model.max_length, COLUMN_STEP)):
                for number, function in enumerate((self._first, self._further)):
                    self._graphs.capture((number, num_rows, longest), partial(function, num_rows, longest))

    def run(self, missing: Missing, is_active: Tensor, num_tokens: int, longest: int) -> None:
        """Compute missing ids, and draft.

        Args:
            missing: of R rows, with `NUM_MISSING` columns.
            is_active: [R] bool, the rows that draft: those whose texts are complete with the missing ids.
            num_tokens: ids to draft, at least 1.
            longest: an upper bound of the lengths of texts with their drafts.
        """
        num_rows = len(is_active)
        for mine, given in zip(self._missing, missing, strict=True):
            mine[:num_rows] = given
        self._active[:num_rows] = is_active
        at = num_rows, size_for(longest, sizes(self._model.max_length, COLUMN_STEP))
        self._graphs.run((0, *at), partial(self._first, *at))
        for _ in range(1, num_tokens):
            self._graphs.run((1, *at), partial(self._further, *at))

    def _first(self, num_rows: int, longest: int) -> None:
        missing = Missing(*(it[:num_rows] for it in self._missing))
        logits = self._model.forward(*missing, longest=longest)
        self._step.zero_()
        self._next[:num_rows] = missing.starts + missing.counts
        self._take(num_rows, logits)

    def _further(self, num_rows: int, longest: int) -> None:
        given = self._chosen[:num_rows, None], self._next[:num_rows], self._active[:num_rows]
        logits = self._model.forward(*given, longest=longest)
        self._next[:num_rows] += 1
        self._take(num_rows, logits)

    def _take(self, num_rows: int, logits: Tensor) -> None:
        chosen = self._choose(num_rows, self._step, logits)
        self._chosen[:num_rows] = chosen
        self.drafted[:num_rows].index_copy_(1, self._step, chosen[:, None])
        self._step += 1


def sizes(most: int, least: int) -> list[int]:
    """Return the sizes that graphs are captured for: `least`, doubled up to `most`, which is the last one."""
    found = [least]
    while found[-1] < most:
        found.append(2 * found[-1])
    return [*found[:-1], most]


def size_for(needed: int, of: Sequence[int]) -> int:
    """Return the least of these sizes that suffices, or the largest."""
    return next((size for size in of if size >= needed), of[-1])
