"""Schedule: what the host decides for texts whose lengths only the device knows, and what it learns of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.types.tensors import to_device

NO_ROW = -1

# tokens that the beginning counts for, and after which older ones count half
_PRIOR = 64.0
_FORGET = 4096.0


@dataclass(slots=True)
class _TextRow:
    """A row of the model's cache.

    `missing` tokens are those that its text lacks, as far as is known; `began` is the step in which the row was given,
    `caught_up` the tokens by which it was caught up since figures were last sent.
    """

    slot: int
    missing: int
    began: int
    caught_up: int = 0


class Schedule:
    """Gives slots rows of the model's cache, and says which texts have to be caught up.

    Lengths arrive some steps late.  Until then texts count as long as they can have become.  `max_length` is the
    maximum number of ids of a row of the cache.
    """

    def __init__(self, max_slots: int, max_rows: int, max_length: int, device: torch.device) -> None:
        self._texts: list[_TextRow | None] = [None] * max_rows
        self.rows = [NO_ROW] * max_slots
        """The row of each slot, or `NO_ROW`."""
        self._max_length = max_length
        self._device = device
        self._on_device: Tensor | None = None
        self._polled = AsyncReadback((3, max_rows), device)
        self._step = self._grown = self._sent_grown = 0
        self._known_length = 0

    @property
    def num_rows(self) -> int:
        """R, up to the last row in use."""
        return max((row + 1 for row, it in enumerate(self._texts) if it is not None), default=0)

    @property
    def longest(self) -> int:
        """An upper bound of the ids of a row."""
        return min(self._max_length, self._known_length + self._grown)

    def begin(self, slot: int, num_tokens: int) -> None:
        """Give a slot a row if one is free, for a request of `num_tokens` tokens so far."""
        self.release(slot)
        row = next((row for row, it in enumerate(self._texts) if it is None), NO_ROW)
        if row != NO_ROW:
            self._texts[row] = _TextRow(slot, num_tokens, self._step)
            self.rows[slot] = row
            self._on_device = None

    def release(self, slot: int) -> None:
        """Take a slot's row back."""
        row = self.rows[slot]
        if row != NO_ROW:
            self._texts[row] = None
            self.rows[slot] = NO_ROW
            self._on_device = None

    def row_of_slot(self) -> Tensor:
        """Return [S] int64 on the device, the row of each slot or `NO_ROW`."""
        if self._on_device is None:
            (self._on_device,) = to_device([torch.tensor(self.rows)], self._device)
        return self._on_device

    def grow(self, num_ids: int) -> None:
        """Note that each text may have become longer by so many ids."""
        self._grown += num_ids

    def add(self, slot: int, num_tokens: int) -> None:
        """Note new tokens of a request that the host has seen."""
        it = self._texts[self.rows[slot]] if self.rows[slot] != NO_ROW else None
        if it is not None:
            it.missing += num_tokens

    def to_catch_up(self, max_tokens: int, at_once: int) -> list[tuple[int, int]]:
        """Return rows with how many tokens to catch them up by, the shortest first, and at most `max_tokens` in all.

        Every step catches a text up by `at_once` tokens anyway.
        """
        found = []
        missing = [(it.missing, row) for row, it in enumerate(self._texts) if it is not None and it.missing > at_once]
        for count, row in sorted(missing):
            taken = min(count, max_tokens)
            if not taken:
                break
            found.append((row, taken))
            max_tokens -= taken
        return found

    def caught_up(self, row: int, num_tokens: int) -> None:
        """Note that a row was caught up by as many tokens, if it had them."""
        it = self._texts[row]
        assert it is not None
        it.missing = max(0, it.missing - num_tokens)
        it.caught_up += num_tokens

    def end(self, figures: Tensor) -> None:
        """End a step: send the figures of its rows, [3, R] from `DraftTexts.figures`, and learn those that arrived."""
        self._learn()
        if self._polled.is_free:
            padding = len(self._texts) - figures.shape[1]
            self._polled.send(torch.nn.functional.pad(figures, (0, padding)), self._step)
            self._sent_grown = self._grown
            for it in self._texts:
                if it is not None:
                    it.caught_up = 0
            self._learn()  # on a CPU they are there at once
        self._step += 1

    def _learn(self) -> None:
        news = self._polled.take()
        if news is None:
            return
        tokens, ids, lengths = news.figures
        for row, it in enumerate(self._texts):
            if it is not None and it.began <= news.sent:
                it.missing = max(0, int(tokens[row] + ids[row]) - it.caught_up)
        self._known_length = max((int(lengths[row]) for row, it in enumerate(self._texts) if it is not None), default=0)
        self._grown = self._grown - self._sent_grown
        self._sent_grown = 0


class IdsPerToken:
    """How many ids of the draft's a token of the target has on average, in the newest outputs; learnt late.

    The average begins with `initial`.
    """

    def __init__(self, initial: float, device: torch.device) -> None:
        self.value = initial
        """The average that the host knows, from 1 to 2: beyond it, drafts get fewer tokens."""
        self._counts = torch.tensor([[_PRIOR * initial], [_PRIOR]], dtype=torch.float64).to(device)
        self._polled = AsyncReadback((2, 1), device)

    def learn(self, num_ids: Tensor, num_tokens: Tensor) -> None:
        """Learn from a step that emitted so many tokens, both [] int64 on the device."""
        news = self._polled.take()
        if news is not None:
            ids, tokens = news.figures[:, 0]
            self.value = min(2.0, max(1.0, float(ids / tokens)))
        self._counts *= torch.where(self._counts[1] > _FORGET, 0.5, 1.0)
        self._counts += torch.stack([num_ids, num_tokens])[:, None]
        if self._polled.is_free:
            self._polled.send(self._counts.round().long(), 0)


class Readback(NamedTuple):
    """What has arrived.  The figures [F, R] int64, and the tag that they were sent with."""

    figures: npt.NDArray[np.int64]
    sent: int


class AsyncReadback:
    """A copy of numbers to the host, at most one at a time."""

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self._is_async = device.type == "cuda"
        self._texts = torch.zeros(shape, dtype=torch.int64, pin_memory=self._is_async)
        self._event: Any = torch.cuda.Event() if self._is_async else None  # type: ignore[no-untyped-call]
        self._sent: int | None = None

    @property
    def is_free(self) -> bool:
        """False while a copy has not been taken."""
        return self._sent is None

    def send(self, figures: Tensor, tag: int) -> None:
        """Begin to copy `figures` [F, R] int64; the last copy must have been taken."""
        self._texts.copy_(figures, non_blocking=True)
        self._sent = tag
        if self._event is not None:
            self._event.record()

    def take(self) -> Readback | None:
        """Return the numbers that were sent last; None if they are still under way."""
        if self._sent is None or (self._event is not None and not self._event.query()):
            return None
        news = Readback(self._texts.numpy().copy(), self._sent)
        self._sent = None
        return news
