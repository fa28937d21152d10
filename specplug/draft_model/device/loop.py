"""DraftLoop: the forward passes and choices of one step's drafts, over tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from specplug.draft_model.device.graphs import Graphs
from specplug.draft_model.device.texts import Missing
from specplug.draft_model.model import COLUMN_STEP, DraftModel

NUM_MISSING = 8
"""The most missing ids of a text that are computed in the pass before the first draft token; more take more steps."""


class Parts(Protocol):
    """What a step does before, between and after the forward passes, for the first R rows of the model's cache.

    The methods are captured: they read and write tensors that stay where they are, decide nothing by their values, and
    return tensors of shapes that depend on R alone.
    """

    def begin(self, num_rows: int) -> None:
        """Begin a step."""

    def prepare(self, num_rows: int) -> tuple[Missing, Tensor]:
        """Return the ids that are missing, with `NUM_MISSING` columns, and [R] bool, the rows that draft after them."""

    def choose(self, num_rows: int, step: Tensor, logits: Tensor) -> Tensor:
        """Return [R] int64, the ids that rows draft at a step, [1] int64, by logits [R, V]."""

    def finish(self, num_rows: int) -> None:
        """End a step, whose drafted ids are in the loop."""


class DraftLoop:
    """Drafts up to n ids for the first R rows of the model's cache.

    A GPU runs each part of a step as one graph, for the next larger of a few sizes.

    Args:
        model: the draft model.
        num_drafted: n.

    Attributes:
        drafted: [rows, n] int64, the ids.
        num_ids: [1] int64, how many of them the step drafts.
    """

    def __init__(self, model: DraftModel, num_drafted: int) -> None:
        self._model, self.graphs = model, Graphs(model.device, model.path)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=model.device)

        rows = model.max_texts
        self.drafted, self.num_ids = zeros(rows, num_drafted), zeros(1)
        self._chosen, self._next, self._active, self._step = zeros(rows), zeros(rows), zeros(rows), zeros(1)

    def capture(self, parts: Parts) -> None:
        """Capture all graphs, the largest first, which share their memory."""
        for num_rows in reversed(sizes(self._model.max_texts, 1)):
            self.graphs.capture(("begin", num_rows), partial(parts.begin, num_rows))
            for longest in reversed(sizes(self._model.max_length, COLUMN_STEP)):
                for key, function in self._passes(parts, num_rows, longest).items():
                    self.graphs.capture(key, function)
            self.graphs.capture(("finish", num_rows), partial(parts.finish, num_rows))

    def begin(self, parts: Parts, num_rows: int) -> None:
        """Begin a step of R rows, a number of `sizes`."""
        self.graphs.run(("begin", num_rows), partial(parts.begin, num_rows))

    def run(self, parts: Parts, num_rows: int, num_ids: int, longest: int) -> None:
        """Draft, and end the step.

        Args:
            parts: its parts, which have begun.
            num_rows: R.
            num_ids: ids to draft, at least 1.
            longest: an upper bound of the lengths of texts with their drafts.
        """
        self.num_ids.fill_(num_ids)
        passes = self._passes(parts, num_rows, size_for(longest, sizes(self._model.max_length, COLUMN_STEP)))
        (first, further) = passes.items()
        self.graphs.run(*first)
        for _ in range(1, num_ids):
            self.graphs.run(*further)
        self.graphs.run(("finish", num_rows), partial(parts.finish, num_rows))

    def _passes(self, parts: Parts, num_rows: int, longest: int) -> dict[Hashable, Callable[[], None]]:
        return {
            ("first", num_rows, longest): partial(self._first, parts, num_rows, longest),
            ("further", num_rows, longest): partial(self._further, parts, num_rows, longest),
        }

    def _first(self, parts: Parts, num_rows: int, longest: int) -> None:
        missing, is_active = parts.prepare(num_rows)
        self._active[:num_rows] = is_active
        self._next[:num_rows] = missing.starts + missing.counts
        self._step.zero_()
        self._take(parts, num_rows, self._model.forward(*missing, longest=longest))

    def _further(self, parts: Parts, num_rows: int, longest: int) -> None:
        given = self._chosen[:num_rows, None], self._next[:num_rows], self._active[:num_rows]
        logits = self._model.forward(*given, longest=longest)
        self._next[:num_rows] += 1
        self._take(parts, num_rows, logits)

    def _take(self, parts: Parts, num_rows: int, logits: Tensor) -> None:
        chosen = parts.choose(num_rows, self._step, logits)
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
