"""Drafter: catches a batch of texts up with the model, then drafts token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from specplug.draft_model.model import DraftModel
from specplug.draft_model.texts import Text

SHORT = 16
"""The most missing ids of a text that are computed in one batch with others; longer ones come in chunks before."""

Choose = Callable[[int, Tensor], Tensor]
"""`choose(step, logits [R, V]) -> [R] int64`: the ids that the texts draft."""

Enough = Callable[[Sequence[int]], bool]
"""`is_enough(rows) -> bool`: whether the rows' texts have drafted all that is worth a forward pass."""


class Drafter:
    """Runs a draft model for a batch of texts, in bounded time.

    Args:
        model: the model; texts are numbered by its rows.
        chunk: the most ids a step that texts with many missing ids are caught up by.
        seconds: the time after which no further token is drafted; None for no limit.
    """

    def __init__(self, model: DraftModel, *, chunk: int = 512, seconds: float | None = None) -> None:
        self.model, self._chunk, self._seconds = model, chunk, seconds

    def draft(
        self, texts: Mapping[int, Text], num_tokens: int, choose: Choose, is_enough: Enough = lambda rows: False
    ) -> tuple[list[int], Tensor]:
        """Draft for texts by row.

        Args:
            texts: row -> its text.
            num_tokens: the most ids to draft after each.
            choose: chooses each next id.
            is_enough: called after each choice; true ends the drafts.

        Returns:
            The rows that were drafted for; the others have so many ids missing that they take further steps.  And the
            drafted ids [R, n] int64 for all rows up to the last of `texts`, with n at most `num_tokens` and 0 if no
            text is ready.
        """
        started = time.monotonic()
        num_tokens = min(num_tokens, self.model.max_length // 4)  # a window is half as long, or longer, when it moves
        missing = {row: text.missing(num_tokens) for row, text in texts.items() if len(text)}
        ready = self._catch_up(texts, missing)
        if not ready:
            return [], torch.empty(0, 0, dtype=torch.int64, device=self.model.device)
        logits, lengths = self._forward(missing, ready, [texts[row].num_cached for row in ready], max(texts) + 1)
        active = (lengths > 0).long()
        drafted: list[Tensor] = []
        longest = int(max(texts[row].num_cached + len(missing[row]) for row in ready))
        for row in ready:
            texts[row].cache(missing[row])
        while True:
            drafted.append(choose(len(drafted), logits))
            is_late = self._seconds is not None and time.monotonic() - started > self._seconds
            if len(drafted) == num_tokens or is_late or is_enough(ready):
                return ready, torch.stack(drafted, 1)
            place = lengths + len(drafted) - 1
            logits = self.model.forward(drafted[-1][:, None], place, active, longest=longest + len(drafted))

    def _catch_up(self, texts: Mapping[int, Text], missing: dict[int, list[int]]) -> list[int]:
        """Compute the first of many missing ids, the shortest first; return the rows that have few left, ascending."""
        left = self._chunk
        for row in sorted(missing, key=lambda row: len(missing[row])):
            ids, count = missing[row], min(len(missing[row]) - 1, left)
            if len(ids) > SHORT and count > 0:
                self._forward_alone(row, ids[:count], texts[row].num_cached)
                texts[row].cache(ids[:count])
                missing[row] = ids[count:]
                left -= count
        return sorted(row for row, ids in missing.items() if len(ids) <= SHORT)

    def _forward_alone(self, row: int, ids: Sequence[int], start: int) -> None:
        new, place = self._tensor([ids]), self._tensor([start])
        self.model.forward(new, place, self._tensor([len(ids)]), first=row, longest=start + len(ids))

    def _forward(
        self, missing: Mapping[int, Sequence[int]], ready: Sequence[int], starts: Sequence[int], num_rows: int
    ) -> tuple[Tensor, Tensor]:
        """Compute the missing ids of the ready rows; return logits [R, V] and lengths [R], 0 for all other rows."""
        num_columns = max(len(missing[row]) for row in ready)
        ids = [[0] * num_columns for _ in range(num_rows)]
        begin, count = [0] * num_rows, [0] * num_rows
        for row, start in zip(ready, starts, strict=True):
            ids[row][num_columns - len(missing[row]) :] = missing[row]
            begin[row], count[row] = start, len(missing[row])
        first, counts = self._tensor(begin), self._tensor(count)
        longest = max(begin[row] + count[row] for row in ready)
        return self.model.forward(self._tensor(ids), first, counts, longest=longest), first + counts

    def _tensor(self, numbers: Sequence[object]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.model.device, non_blocking=True)
