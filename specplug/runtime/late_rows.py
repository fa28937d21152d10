"""LateRows: the rows of a step in a stream that could not draft, because the proposer had not ingested their texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


class LateRows:
    """Request ids, to be iterated over once the step has run.  Pickling gives a tuple of them.

    Args:
        names: the request id of each row.

    Attributes:
        flags: [B] int32, which the step's host function sets: 1 for each row that could not draft.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self.flags = names, np.zeros(len(names), np.int32)

    def __iter__(self) -> Iterator[str]:
        return iter([self._names[row] for row in np.flatnonzero(self.flags)])

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)
