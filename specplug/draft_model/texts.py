"""DraftTexts: the draft model's texts on its device, translated from the target's tokens one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specplug.text.translate.tables import TokenLists

NO_REQUEST = -1


class Running(NamedTuple):
    """The requests of a batch by row of the draft model's cache, [R] int64 each.

    Attributes:
        owners: a number that no two requests share; `NO_REQUEST` in rows without a request.
        lengths: how many tokens each has.
        starts: the first token that is text, after images and the like.
    """

    owners: Tensor
    lengths: Tensor
    starts: Tensor

    def at(self, rows: slice) -> Running:
        """Return some of the rows."""
        return Running(*(it[rows] for it in self))


class Missing(NamedTuple):
    """Ids that the model has to compute, as `DraftModel.forward` takes them: ids [R, T], starts and counts [R]."""

    ids: Tensor
    starts: Tensor
    counts: Tensor


class DraftTexts:
    """Texts of at most L ids.  A longer one is a window: its first ids, such as BOS, and its newest ones.

    A window that is full starts again with the newest L / 2 ids, which are then computed anew.

    Args:
        table: the draft's ids for each of the target's.
        prefix: ids that the draft's tokenizer puts before a text.
        skipped: ids that the target's tokenizer puts before a text, in whose place those are.
        max_texts: rows.
        max_length: L.
        num_drafted: the maximum number of ids of a draft.
        device: where the texts are.
        is_exact: whether only what is missing is computed, which is read back; otherwise shapes are fixed.

    Attributes:
        ids: [rows, L + 1] int64, the texts; the last column is never read.
        lengths: [rows] int64, ids of each text.
        done: [rows] int64, tokens of the target that it holds.
        cached: [rows] int64, how many of the first ids are in the model's cache.
        num_ids: [rows] int64, all ids that tokens became, in the window or not.
        is_broken: [rows] bool, true where the target has an id of no token; such texts do not grow.
    """

    def __init__(
        self,
        table: TokenLists,
        prefix: Sequence[int],
        skipped: Sequence[int],
        *,
        max_texts: int,
        max_length: int,
        num_drafted: int,
        device: torch.device,
        is_exact: bool,
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(max_texts, *shape, dtype=dtype, device=device)

        self._max_ids_per_token = max_length // 4  # ids for one token; a longer list counts as no token
        counts = np.where(table.counts > self._max_ids_per_token, -1, table.counts)
        self._longest = int(counts.max(initial=1))
        self._starts, self._counts, self._values = (
            torch.from_numpy(numbers).to(device) for numbers in (table.starts, counts, table.values)
        )
        self._num_first = len(prefix)
        self._skipped = tuple(skipped)
        self._is_exact = is_exact
        self._max_length = max_length
        self._num_drafted = num_drafted
        self._device = device
        self.ids = zeros(max_length + 1)
        self.ids[:, : len(prefix)] = torch.tensor(prefix, dtype=torch.int64).to(device)
        self.lengths = zeros()
        self.done = zeros()
        self.cached = zeros()
        self.num_ids = zeros()
        self.is_broken = zeros(dtype=torch.bool)
        self._owners = zeros().fill_(NO_REQUEST)
        self._fed = zeros(num_drafted)
        self._num_fed = zeros()

    def growth(self, num_tokens: int) -> int:
        """Return the maximum number of ids that `extend` appends for so many tokens."""
        return min(max(2 * num_tokens, self._longest), self._max_ids_per_token)

    def begin(self, running: Running) -> None:
        """Empty the rows of requests that are new in them, or whose text begins anew.

        It does so too after more tokens than a window has, of which only the newest half is read.
        """
        rows = slice(len(running.owners))
        is_known = running.owners != NO_REQUEST
        is_other = (running.owners != self._owners[rows]) | (running.lengths < self.done[rows])
        done = torch.where(is_other, 0, self.done[rows])
        is_far = running.lengths - torch.maximum(done, running.starts) > self._max_length
        starts = torch.where(is_far, running.lengths - self._max_length // 2, running.starts)
        is_new = is_known & (is_other | (starts > done))
        self._owners[rows] = torch.where(is_known, running.owners, self._owners[rows])
        self.done[rows] = torch.where(is_new, starts, self.done[rows])
        self.lengths[rows] = torch.where(is_new, self._num_first, self.lengths[rows])
        self.is_broken[rows] &= ~is_new
        for numbers in (self.cached, self.num_ids, self._num_fed):
            numbers[rows] = torch.where(is_new, 0, numbers[rows])

    def newest(self, tokens: Tensor, entries: Tensor, rows: slice, num_tokens: int) -> Tensor:
        """Return [R, n], the next tokens of some rows; those that are not there yet are undefined.

        Args:
            tokens: [S, L] int32, a token table, there or on the host.
            entries: [R] int64, the row of `tokens` of each.
            rows: the rows.
            num_tokens: n.
        """
        places = self.done[rows, None] + torch.arange(num_tokens, device=self._device)
        places = places.to(tokens.device).clamp(max=tokens.shape[1] - 1)
        return tokens[entries[:, None], places].long().to(self._device)

    def extend(self, running: Running, rows: slice, tokens: Tensor) -> None:
        """Append the next tokens of some rows, [R, n] from `newest`, but at most `growth` ids for them."""
        max_ids = self.growth(tokens.shape[1])
        new, total, taken = self._translated(running.at(rows), rows, tokens, max_ids)
        self._make_room(rows, total)
        place = torch.arange(max_ids, device=self._device)
        columns = torch.where(place < total[:, None], self.lengths[rows, None] + place, self._max_length)
        self.ids[rows] = self.ids[rows].scatter(1, columns, new)
        self.lengths[rows] += total
        self.num_ids[rows] += total
        self.done[rows] += taken

    def _translated(self, running: Running, rows: slice, tokens: Tensor, max_ids: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ids [R, max_ids] for tokens, how many of them count, and how many tokens they are for."""
        num_tokens = tokens.shape[1]
        places = self.done[rows, None] + torch.arange(num_tokens, device=self._device)
        is_next = (places < running.lengths[:, None]) & (running.owners != NO_REQUEST)[:, None]
        is_id = (tokens >= 0) & (tokens < len(self._counts))
        tokens = torch.where(is_id, tokens, 0)
        counts = torch.where(is_id, self._counts[tokens], -1)
        is_wrong = is_next & (counts < 0)
        self.is_broken[rows] |= is_wrong.any(1)
        is_next &= is_wrong.cumsum(1) == 0
        counts = torch.where(is_next & ~self._is_skipped(places, tokens), counts, 0)
        ends = counts.cumsum(1)
        taken = is_next & (ends <= max_ids)
        place = torch.arange(max_ids, device=self._device).expand(len(ends), max_ids).contiguous()
        source = torch.searchsorted(ends, place, right=True).clamp(max=num_tokens - 1)
        values = self._starts[tokens.gather(1, source)] + place - (ends - counts).gather(1, source)
        new = self._values[values.clamp(0, len(self._values) - 1)]
        return new, torch.where(taken, ends, 0).amax(1), taken.sum(1)

    def _is_skipped(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return, for tokens at places of a text, whether the draft's own prefix stands for them."""
        is_skipped = torch.zeros_like(places, dtype=torch.bool)
        for place, token in enumerate(self._skipped):
            is_skipped |= (places == place) & (tokens == token)
        return is_skipped

    def _make_room(self, rows: slice, total: Tensor) -> None:
        """Move the windows that have no room for `total` [R] more ids, a draft, and the token after it."""
        lengths = self.lengths[rows]
        is_full = lengths + total + self._num_drafted + 1 > self._max_length
        least = torch.minimum(lengths - self._num_first, lengths + total - self._max_length // 2)
        moved = torch.where(is_full, least.clamp(min=0), 0)
        column = torch.arange(self._max_length + 1, device=self._device)
        source = torch.where(column < self._num_first, column, column + moved[:, None])
        self.ids[rows] = self.ids[rows].gather(1, source.clamp(max=self._max_length))
        self.lengths[rows] = lengths - moved
        for numbers in (self.cached, self._num_fed):
            numbers[rows] = torch.where(moved > 0, 0, numbers[rows])

    def ids_of(self, tokens: Tensor) -> Tensor:
        """Return how many ids each token has, of the shape of `tokens`; 0 for ids of no token."""
        is_id = (tokens >= 0) & (tokens < len(self._counts))
        return torch.where(is_id, self._counts[torch.where(is_id, tokens, 0)], 0).clamp(min=0)

    def rejoin(self, rows: slice) -> None:
        """Keep what the model has computed of its last draft, up to the first id that the text has otherwise."""
        place = torch.arange(self._num_drafted, device=self._device)
        at = self.cached[rows, None] + place
        is_same = self.ids[rows].gather(1, at.clamp(max=self._max_length)) == self._fed[rows]
        is_kept = is_same & (place < self._num_fed[rows, None]) & (at < self.lengths[rows, None])
        self.cached[rows] += is_kept.long().cumprod(1).sum(1)
        self.cached[rows] = torch.minimum(self.cached[rows], (self.lengths[rows] - 1).clamp(min=0))
        self._num_fed[rows].zero_()

    def missing(self, rows: slice, max_ids: int, *, keep: int = 0) -> Missing:
        """Return the next missing ids of some rows, up to `max_ids`, without the last `keep`; aligned to the right.

        They count as cached from now on.
        """
        starts = self.cached[rows].clone()
        counts = (self.lengths[rows] - starts - keep).clamp(0, max_ids)
        if self._is_exact:
            max_ids = max(1, int(counts.max()))
        columns = starts[:, None] + torch.arange(max_ids, device=self._device) - max_ids + counts[:, None]
        ids = self.ids[rows].gather(1, columns.clamp(min=0, max=self._max_length))
        self.cached[rows] += counts
        return Missing(ids, starts, counts)

    def is_ready(self, running: Running) -> Tensor:
        """Return [R] bool, whether the model has computed the whole text of each row."""
        rows = slice(len(running.owners))
        is_whole = (self.done[rows] == running.lengths) & (self.cached[rows] == self.lengths[rows])
        return is_whole & (running.owners != NO_REQUEST) & (self.lengths[rows] > 0)

    def feed(self, rows: slice, drafted: Tensor, counts: Tensor) -> None:
        """Note the drafted ids [R, n] of which the model has computed the first `counts` [R]."""
        self._fed[rows, : drafted.shape[1]] = drafted
        self._num_fed[rows] = counts

    def figures(self, running: Running) -> Tensor:
        """Return [3, R]: tokens that are missing, ids that are not computed, and the ids of the text.

        All are 0 in rows whose text is broken, and the former two in those of requests that are not in the batch.
        """
        rows = slice(len(running.owners))
        is_whole = ~self.is_broken[rows]
        counts = is_whole & (running.owners != NO_REQUEST)
        missing = running.lengths - self.done[rows], self.lengths[rows] - self.cached[rows]
        return torch.stack([*(torch.where(counts, it, 0) for it in missing), self.lengths[rows] * is_whole])
