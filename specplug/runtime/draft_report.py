"""DraftReport: what the host function of a step states of its drafts."""

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
        self._names = names
        self.flags = np.zeros(len(names), np.int32)

    def __iter__(self) -> Iterator[str]:
        return iter([self._names[row] for row in np.flatnonzero(self.flags)])

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)


class DraftReport:
    """Figures of one step's drafts, to be read, or pickled, once the step has run: nothing waits for them.

    Args:
        names: the request id of each row.
        draft_length: K of the engine if the step reports what its drafts are expected to yield, else 0.

    Attributes:
        late: the rows that could not draft.
        sums: [K + 1] float64, which the step's host function sets: `expected_rows`, then `expected`.
    """

    def __init__(self, names: Sequence[str] = (), draft_length: int = 0) -> None:
        self.late = LateRows(names)
        self.sums = np.zeros(draft_length + 1)

    @property
    def expected(self) -> list[float] | None:
        """See `StepReport.expected`; None if the step does not report it, or no row could draft."""
        found: list[float] = self.sums[1:].tolist()
        return found if self.expected_rows else None

    @property
    def expected_rows(self) -> int:
        """The rows of `expected`: those that sampled, may draft, were not late and have not ended."""
        return int(self.sums[0])


NO_DRAFTS = DraftReport()
"""The report of a step of which nothing is known."""
