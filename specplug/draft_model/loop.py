"""DraftLoop: the forward passes and choices of one step's drafts, over tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from specplug.draft_model.model import COLUMN_STEP, DraftModel
from specplug.draft_model.texts import Missing
from specplug.errors import PluginError


class Parts(Protocol):
    """What a step does before, between and after the forward passes, for the first R rows of the model's cache.

    The methods are captured: they read and write tensors that stay where they are, decide nothing by their values, and
    return tensors of shapes that depend on R alone.
    """

    def begin(self, num_rows: int) -> None:
        """Begin a step."""

    def prepare(self, num_rows: int) -> tuple[Missing, Tensor]:
        """Return the ids that are missing, and [R] bool, the rows that draft after them."""

    def choose(self, num_rows: int, step: Tensor, logits: Tensor) -> Tensor:
        """Return [R] int64, the ids that rows draft at a step, [1] int64, by logits [R, V]."""

    def finish(self, num_rows: int) -> None:
        """End a step, whose drafted ids are in the loop."""


class DraftLoop:
    """Drafts up to n ids for the first R rows of the model's cache.

    Drafts have at most `num_drafted` = n ids: `drafted` [rows, n] int64, of which a step drafts `num_ids` [1] int64.
    Steps have the sizes that they need if `is_exact`, otherwise the next larger of a few, and a GPU runs each part of a
    step as one graph.
    """

    def __init__(self, model: DraftModel, num_drafted: int, *, is_exact: bool) -> None:
        self._model = model
        self.graphs = Graphs(model.device, model.path)
        self._is_exact = is_exact

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=model.device)

        rows = model.max_texts
        self.drafted = zeros(rows, num_drafted)
        self.num_ids = zeros(1)
        self._chosen = zeros(rows)
        self._next = zeros(rows)
        self._active = zeros(rows)
        self._step = zeros(1)

    def capture(self, parts: Parts) -> None:
        """Capture all graphs, the largest first, which share their memory."""
        for num_rows in reversed(sizes(self._model.max_texts, 1)):
            self.graphs.capture(("begin", num_rows), partial(parts.begin, num_rows))
            for longest in reversed(sizes(self._model.max_length, COLUMN_STEP)):
                for key, function in self._passes(parts, num_rows, longest).items():
                    self.graphs.capture(key, function)
            self.graphs.capture(("finish", num_rows), partial(parts.finish, num_rows))

    def num_rows(self, needed: int) -> int:
        """Return R, for a step that needs so many rows."""
        return needed if self._is_exact else size_for(needed, sizes(self._model.max_texts, 1))

    def begin(self, parts: Parts, num_rows: int) -> None:
        """Begin a step of R rows, from `num_rows`."""
        self.graphs.run(("begin", num_rows), partial(parts.begin, num_rows))

    def run(
        self, parts: Parts, num_rows: int, num_ids: int, longest: int, is_enough: Callable[[int], bool] | None = None
    ) -> None:
        """Draft, and end the step.

        Args:
            parts: its parts, which have begun.
            num_rows: R.
            num_ids: ids to draft, at least 1.
            longest: an upper bound of the lengths of texts with their drafts.
            is_enough: called with the number of ids after each but the last; true ends the drafts.
        """
        if not self._is_exact:
            longest = size_for(longest, sizes(self._model.max_length, COLUMN_STEP))
        first, further = self._passes(parts, num_rows, longest).items()
        self.graphs.run(*first)
        drafted = 1
        while drafted < num_ids and not (is_enough is not None and is_enough(drafted)):
            self.graphs.run(*further)
            drafted += 1
        self.num_ids.fill_(drafted)
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
        arguments = self._chosen[:num_rows, None], self._next[:num_rows], self._active[:num_rows]
        logits = self._model.forward(*arguments, longest=longest)
        self._next[:num_rows] += 1
        self._take(parts, num_rows, logits)

    def _take(self, parts: Parts, num_rows: int, logits: Tensor) -> None:
        chosen = parts.choose(num_rows, self._step, logits)
        self._chosen[:num_rows] = chosen
        self.drafted[:num_rows].index_copy_(1, self._step, chosen[:, None])
        self._step += 1


class Graphs:
    """Functions without arguments or results, which read and write tensors that stay where they are.

    On a GPU each is captured once, and is one launch from then on.  Elsewhere they run as they are.  `who`
    names what they compute, for messages.
    """

    def __init__(self, device: torch.device, who: str) -> None:
        self._is_captured = device.type == "cuda"
        self._who = who
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def capture(self, key: Hashable, function: Callable[[], None]) -> None:
        """Capture a function, after it has run once; call this before serving.

        Raises:
            PluginError: it cannot be captured, for example because it reads a number back.
        """
        if not self._is_captured:
            return
        function()
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool):
                function()
        except RuntimeError as error:
            raise PluginError.build(
                "the draft model cannot be captured as a CUDA graph",
                who=self._who,
                found=str(error).splitlines()[0],
                expected="a model whose forward pass reads nothing back from the device",
                remedy="Choose another draft model",
            ) from error
        self._pool = graph.pool()
        self._graphs[key] = graph

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run a function, by its graph if it has been captured under this key."""
        graph = self._graphs.get(key)
        if graph is None:
            function()
        else:
            graph.replay()


def sizes(largest: int, smallest: int) -> list[int]:
    """Return the sizes that graphs are captured for: `smallest`, doubled up to `largest`, which is the last one."""
    found = [smallest]
    while found[-1] < largest:
        found.append(2 * found[-1])
    return [*found[:-1], largest]


def size_for(needed: int, of: Sequence[int]) -> int:
    """Return the least of these sizes that suffices, or the largest."""
    return next((size for size in of if size >= needed), of[-1])
