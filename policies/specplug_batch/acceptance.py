"""Mean acceptance length by draft length, learnt from verified drafts of any length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specplug.types.plan import StepReport
from specplug_batch.gains import kept_share

Array = npt.NDArray[np.float64]

_FIRST_RATE = 0.6
"""Acceptance of every token to assume before anything was verified."""

_PRIOR_ROWS = 4.0
"""Rows that the assumed acceptance counts as much as."""

_SETTLED = 32
"""Steps at a new draft length after which what it emits is compared with what was expected of it."""

_MOST_WRONG, _DOUBTED_ROWS = 0.5, 1024.0
"""Largest error, as a logarithm, that counts, and the rows after which half of it corrects later expectations: few rows
are of few requests, whose texts differ."""


class AcceptanceLengths:
    """Tokens that a row emits per step, on average, at every draft length.

    A request whose drafts are accepted in full goes on in the same run of tokens, whatever the draft length: with n
    draft tokens, a run of t tokens takes ceil(t / (n + 1)) steps.  So runs that were served at one length tell what
    others would emit.  Acceptance by position does not: long drafts leave easy stretches of text in fewer steps, so
    the average over their steps shows too few of those, and that over the steps of short drafts too many.

    Drafters that are worse at later positions break runs that shorter drafts would follow.  When the length grows,
    what it emits corrects what shorter drafts expect of it and of longer ones.

    Args:
        most: the longest draft.
    """

    def __init__(self, most: int) -> None:
        self._sizes = np.arange(1, most + 2)  # most tokens of a row and step, by draft length
        assumed = np.cumsum(_FIRST_RATE ** np.arange(most + 1))
        self._tokens, self._steps = _PRIOR_ROWS, _PRIOR_ROWS / assumed
        self._rows, self._step = 0.0, 0  # the step of the newest report
        self._corrections = np.zeros(most + 1)  # logarithms
        self._present, self._at_present = 0, (0, 0, 0)  # draft length; steps, tokens and rows at it
        self._expected: float | None = None  # what the length before expected of the present one

    def observe(self, report: StepReport) -> None:
        """Learn from the results of a step; requests for which nothing was drafted emitted one token."""
        if not report.draft_length or not report.requests:
            return
        undrafted = [(0, 1)] * (report.requests - len(report.runs))
        before, after = np.array([*report.runs, *undrafted], np.int64).T
        keep = kept_share(len(after), report.step - self._step, self._rows)
        self._step = report.step
        sizes = self._sizes[:, None]
        self._steps = self._steps * keep + (-(-after // sizes) + -before // sizes).sum(axis=1)
        emitted = int((after - before).sum())
        self._tokens = self._tokens * keep + emitted
        self._rows = self._rows * keep + len(after)
        if report.draft_length == self._present:
            steps, tokens, rows = self._at_present
            self._at_present = steps + 1, tokens + emitted, rows + len(after)
            if steps + 1 == _SETTLED and self._expected is not None:
                rows += len(after)
                wrong = float(np.clip(np.log((tokens + emitted) / rows / self._expected), -_MOST_WRONG, _MOST_WRONG))
                self._corrections[self._present :] += wrong * rows / (rows + _DOUBTED_ROWS)

    def settle(self, draft_length: int) -> None:
        """State that steps have this draft length from now on, but for single ones."""
        if draft_length == self._present:
            return
        comparable = 0 < self._present < draft_length and self._at_present[0] >= _SETTLED
        self._expected = float(self.expected()[draft_length]) if comparable else None
        self._present, self._at_present = draft_length, (0, 0, 0)

    def expected(self, optimism: float = 0.0) -> Array:
        """Return the tokens that a row emits per step at each draft length, [most + 1] float64, 1 at length 0.

        Args:
            optimism: number of standard errors to add.
        """
        corrections = np.where(self._sizes > self._present + 1, self._corrections, 0.0)
        found: Array = self._tokens / self._steps * np.exp(corrections)
        found = np.clip(found * (1.0 + optimism / np.sqrt(self._rows + _PRIOR_ROWS)), 1.0, self._sizes)
        return found
