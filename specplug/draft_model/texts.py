"""Text: the ids of one text, and which of them the model has in its cache."""

from __future__ import annotations

from collections.abc import Sequence


class Text:
    """One text of a draft model.  A long one is a window: its first ids, such as BOS, and its newest ones.

    The window moves by half of its length at a time, and is computed anew then, so the work for each token does not
    grow with the text.

    Args:
        max_length: the most ids of the window.
        num_first: how many of the first ids always stay in it.
    """

    def __init__(self, max_length: int, num_first: int = 0) -> None:
        self._max_length, self._num_first = max_length, num_first
        self._ids: list[int] = []
        self._start = num_first  # the first id of the window after those
        self._cached: list[int] = []  # the first ids of the window as the model has computed them, and drafted ones

    def __len__(self) -> int:
        """Return how many ids the window has."""
        return min(len(self._ids), self._num_first) + max(0, len(self._ids) - self._start)

    @property
    def num_ids(self) -> int:
        """How many ids the whole text has."""
        return len(self._ids)

    @property
    def num_cached(self) -> int:
        """How many of the window's ids are in the cache."""
        return len(self._cached)

    def change(self, keep: int, ids: Sequence[int]) -> None:
        """Replace all ids but the first `keep` of the text.  Cached ids stay up to the first that differs."""
        del self._ids[keep:]
        self._ids += ids
        if keep <= self._start and self._start > self._num_first:
            self._restart()
            return
        same = min(len(self._cached), keep if keep <= self._num_first else self._num_first + keep - self._start)
        while same < min(len(self._cached), len(self)) and self._cached[same] == self._id(same):
            same += 1
        del self._cached[same:]

    def missing(self, room: int) -> list[int]:
        """Return the ids that the model has to compute before it drafts up to `room` tokens; at least the last one."""
        if len(self) + room > self._max_length:
            self._restart()
        del self._cached[max(0, len(self) - 1) :]
        return [self._id(at) for at in range(len(self._cached), len(self))]

    def cache(self, ids: Sequence[int]) -> None:
        """Note ids that the model has computed after the cached ones; ids of a draft may follow the text's."""
        self._cached += ids

    def _id(self, at: int) -> int:
        return self._ids[at if at < self._num_first else at - self._num_first + self._start]

    def _restart(self) -> None:
        self._start = max(self._num_first, len(self._ids) - self._max_length // 2)
        self._cached.clear()
