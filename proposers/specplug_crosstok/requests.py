"""DraftContexts: the draft model's context of each running request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specplug.draft_model.pairing import Pair, Translation
from specplug.draft_model.texts import Text
from specplug.errors import ContractError, SpecplugError
from specplug.types.batch import EngineBatch
from specplug_crosstok.options import Route

logger = logging.getLogger(__name__)

Probabilities = npt.NDArray[np.float64]
_IN_FLIGHT = 4


@dataclass(slots=True)
class InFlight:
    """A draft that waits for its verdict: kind and probability of each token, [n]."""

    kinds: npt.NDArray[np.int32]
    probabilities: Probabilities


@dataclass(slots=True)
class DraftContext:
    """One request.

    Attributes:
        translation: translates its tokens.
        text: its ids of the draft model.
        row: the row of the model's cache; None while there is none to spare, and after a token was not translated.
        num_tokens: the target's tokens that it has.
        in_flight: its newest drafts, by base length.
    """

    translation: Translation
    text: Text
    row: int | None
    num_tokens: int = 0
    in_flight: dict[int, InFlight] = field(default_factory=dict, repr=False)

    def send(self, base_len: int, draft: InFlight) -> None:
        """Keep a draft until its verdict, and forget those that have had none for long."""
        self.in_flight[base_len] = draft
        while len(self.in_flight) > _IN_FLIGHT:
            del self.in_flight[next(iter(self.in_flight))]


class DraftContexts:
    """The contexts by slot.

    Args:
        pair: the tokenizers.
        max_texts: the rows of the draft model's cache.
        max_length: the most ids of a text.
        vocab_size: the draft model's; its tokenizer may have more ids.
        route: sampled requests that may draw common ids, and all that draft nothing else, are translated by tokens.
    """

    def __init__(self, pair: Pair, max_texts: int, max_length: int, vocab_size: int, route: Route) -> None:
        self._pair, self._max_length, self._vocab_size, self._route = pair, max_length, vocab_size, route
        self._table = None if route == "slem" else pair.table()
        self._free = list(range(max_texts))[::-1]
        self._by_slot: dict[int, DraftContext] = {}

    def __getitem__(self, slot: int) -> DraftContext:
        return self._by_slot[slot]

    def get(self, slot: int) -> DraftContext | None:
        """Return a slot's context, or None."""
        return self._by_slot.get(slot)

    def ingest(self, batch: EngineBatch) -> None:
        """Append the batch's new tokens; rows whose whole text is new begin anew."""
        table, starts = batch.tokens.numpy(), _text_starts(batch)
        first = batch.lengths - batch.num_new - (0 if batch.first is None else batch.first)
        columns = (batch.slots, batch.rows, batch.lengths, batch.num_new, first, batch.temperature > 0)
        for row, (slot, entry, length, num_new, column, is_sampled) in enumerate(
            zip(*(it.tolist() for it in columns), strict=True)
        ):
            if not num_new:
                continue
            skipped = max(0, starts.get(row, 0) - (length - num_new))
            if num_new == length or skipped:
                self._begin(slot, is_sampled)
            new = table[entry, column + skipped : column + num_new]
            context = self._by_slot.get(slot)
            if context is not None:
                context.num_tokens = length
                self._extend(context, new.tolist())

    def release(self, slot: int) -> None:
        """Forget a slot."""
        context = self._by_slot.pop(slot, None)
        if context is not None and context.row is not None:
            self._free.append(context.row)
            self._free.sort(reverse=True)  # the model computes all rows up to the last one in use

    def _begin(self, slot: int, is_sampled: bool) -> None:
        self.release(slot)
        table = self._table if is_sampled or self._route == "tli" else None
        row = self._free.pop() if self._free else None
        text = Text(self._max_length, self._pair.num_first)
        self._by_slot[slot] = DraftContext(self._pair.translation(table), text, row)

    def _extend(self, context: DraftContext, new: Sequence[int]) -> None:
        if context.row is None:
            return
        try:
            keep, ids = context.translation.extend(new)
            if max(ids, default=0) >= self._vocab_size:
                raise ContractError.build("the draft model has no such id", found=max(ids), expected=self._vocab_size)
            context.text.change(keep, ids)
        except SpecplugError as error:  # an id that the target's tokenizer does not have
            logger.warning("a request gets no drafts from the draft model: %s", error)
            self._free.append(context.row)
            context.row = None


def _text_starts(batch: EngineBatch) -> dict[int, int]:
    """Return, for each row with barriers, the position after its last one."""
    starts: dict[int, int] = {}
    for barrier in batch.barriers:
        starts[barrier.row] = max(barrier.stop, starts.get(barrier.row, 0))
    return starts
