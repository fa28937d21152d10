"""Accepted tokens by draft length: what drafters report of their newest drafts, and what runs of tokens show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from specplug.cost.planner import kept_share
from specplug.types.plan import StepReport

Array = npt.NDArray[np.float64]

_FIRST_RATE = 0.6
_FIRST_ROWS = 4.0
"""Acceptance of every token to assume before anything was verified, and the rows that it counts for."""


class RunLengths:
    """Tokens that a row emits per step at every draft length, learnt at any length.

    A request whose drafts are accepted in full goes on in the same run of tokens, whatever the draft length: with n
    draft tokens, a run of t tokens takes ceil(t / (n + 1)) steps.  So runs that were served at one length show what
    others would emit.  Acceptance by position does not: long drafts leave easy stretches of text in fewer steps, so
    the average over their steps shows too few of those, and that over the steps of short drafts too many.
    """

    def __init__(self, longest: int) -> None:
        self._sizes = np.arange(1, longest + 2)  # most tokens of a row and step, by draft length
        self._tokens = _FIRST_ROWS
        self._steps: Array = _FIRST_ROWS / np.cumsum(_FIRST_RATE ** np.arange(longest + 1))

    def observe(self, reports: Sequence[StepReport]) -> None:
        """Learn from steps with drafts; requests for which nothing was drafted emitted one token."""
        runs = [run for report in reports for run in report.runs]
        rows = sum(report.requests for report in reports)
        undrafted = [(0, 1)] * max(0, rows - len(runs))
        if not runs and not undrafted:
            return
        before, after = np.array([*runs, *undrafted], np.int64).T
        sizes = self._sizes[:, None]
        keep = kept_share(max(1, rows // len(reports)), len(reports))
        self._steps = self._steps * keep + (-(-after // sizes) + -before // sizes).sum(axis=1)
        self._tokens = self._tokens * keep + int((after - before).sum())

    def accepted(self) -> list[float]:
        """Return the accepted tokens of a row and step at each draft length, from 0 to the longest."""
        found: list[float] = (np.clip(self._tokens / self._steps, 1.0, self._sizes) - 1.0).tolist()
        return found


NEWEST = 0.25
"""Weight of the newest step in the average, as texts go on for some steps like they were.  A report that comes n steps
after the one before counts for n steps, so that the average is of as many steps where few are reported."""


class ReportedLengths:
    """The same from the survival probabilities of the newest drafts, which drafters report one step late.

    Attributes:
        is_known: whether anything was reported.
    """

    def __init__(self, longest: int) -> None:
        self._survival = [0.0] * longest
        self._step = 0  # that of the newest report
        self.is_known = False

    def observe(self, reports: Sequence[StepReport]) -> None:
        """Take the reports of steps in; a few numbers of each are faster without numpy."""
        for report in reports:
            rows = report.expected_rows
            if report.expected is None or not rows:
                continue
            weight = 1.0 - (1.0 - NEWEST) ** (report.step - self._step) if self.is_known else 1.0
            pairs = zip(self._survival, report.expected, strict=True)
            self._survival = [known + weight * (newest / rows - known) for known, newest in pairs]
            self._step = report.step
            self.is_known = True

    def accepted(self) -> list[float]:
        """Return the expected accepted tokens of a row and step at each draft length, from 0 to the longest."""
        return [0.0, *accumulate(self._survival)]
