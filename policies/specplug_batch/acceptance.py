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
AVERAGE = 1 / 64
"""Weights of a step in the newest average, as texts go on for some steps like they were, and in the long one."""

_REMEMBERED = 64.0
_FIRST_CHOICES = 4.0
_FIRST_SHARE = 0.5
"""Choices after which one counts a third, and the share to start with and the choices that it counts for."""


class ReportedLengths:
    """The same from the survival probabilities of the newest drafts, which drafters report one step late.

    What comes is expected to lie between the long average and the newest one.  How near to the newest is learnt by
    linear regression of the reports after each choice: where drafts come in short runs, these have ended before a
    report of them arrives, and a length chosen by the newest alone would verify more for fewer accepted tokens.

    Attributes:
        is_known: whether anything was reported.
    """

    def __init__(self, longest: int) -> None:
        self._newest = [0.0] * longest
        self._average = [0.0] * longest
        self._step = 0  # that of the newest report
        self._choices = self._square = self._product = 0.0  # sums of the regression
        self.is_known = False

    def observe(self, reports: Sequence[StepReport]) -> None:
        """Take in what was reported since the newest choice; a few numbers are faster without numpy."""
        reports = [report for report in reports if report.expected_rows]
        rows = sum([report.expected_rows for report in reports])
        columns = [report.expected for report in reports if report.expected is not None]
        if not columns:
            return
        found = [sum(column) / rows for column in zip(*columns, strict=True)]
        if self.is_known:
            self._regress(sum(found))
        steps = reports[-1].step - self._step
        newest = 1.0 - (1.0 - NEWEST) ** steps if self.is_known else 1.0
        average = max(1.0 - (1.0 - AVERAGE) ** steps, 1.0 / (1.0 + self._choices))
        self._newest = [known + newest * (each - known) for known, each in zip(self._newest, found, strict=True)]
        self._average = [known + average * (each - known) for known, each in zip(self._average, found, strict=True)]
        self._step = reports[-1].step
        self.is_known = True

    def accepted(self) -> list[float]:
        """Return the expected accepted tokens of a row and step at each draft length, from 0 to the longest."""
        share = self.share
        survival = [
            average + share * (each - average) for average, each in zip(self._average, self._newest, strict=True)
        ]
        return [0.0, *accumulate(survival)]

    @property
    def share(self) -> float:
        """The share of the newest average in what is expected, 0 to 1."""
        slope = self._product / self._square if self._square else _FIRST_SHARE
        share = (slope * self._choices + _FIRST_SHARE * _FIRST_CHOICES) / (self._choices + _FIRST_CHOICES)
        return min(1.0, max(0.0, share))

    def _regress(self, found: float) -> None:
        """Enter what came after a choice, in tokens per row."""
        average = sum(self._average)
        moved = sum(self._newest) - average
        keep = 1.0 - 1.0 / _REMEMBERED
        self._choices = keep * self._choices + 1.0
        self._square = keep * self._square + moved * moved
        self._product = keep * self._product + moved * (found - average)
