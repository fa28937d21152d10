"""What steps with drafts turned out to be worth, by draft length and batch size, and when to decide or probe anew."""

from __future__ import annotations

from math import inf, log2

import numpy as np
import numpy.typing as npt

from specplug.types.plan import StepReport

Array = npt.NDArray[np.float64]

DOES_NOT_PAY = "does not pay"
"""`StepPlan.why` of a plan without drafts."""

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

        `optimism` is a number of standard errors to add.
        """
        corrections = np.where(self._sizes > self._present + 1, self._corrections, 0.0)
        found: Array = self._tokens / self._steps * np.exp(corrections)
        found = np.clip(found * (1.0 + optimism / np.sqrt(self._rows + _PRIOR_ROWS)), 1.0, self._sizes)
        return found


_TRUST = 8.0
"""Number of steps like those of the nearest class, or without gain, with which the average of a class starts."""

_KNOWN_ROWS = 128
"""Least number of rows, of all steps together."""

_MEMORY_STEPS, _MEMORY_ROWS = 48.0, 768.0
"""Steps after which one counts a third: at least the first number, and enough for so many rows."""

_REMEMBERED_ROWS = 16.0
"""Rows that earlier observations count for at least, so that one probe of few rows does not decide alone."""


def kept_share(rows: float, steps: int, known: float) -> float:
    """Return what share of earlier observations still counts beside those of a step with so many rows.

    What was observed ages faster in steps without drafts: after many of them, probes tell what drafts are worth.

    Args:
        rows: with drafts.
        steps: since the observation before.
        known: rows that the earlier observations count for.
    """
    aged = max((1.0 - 1.0 / _MEMORY_STEPS) ** max(0, steps - 1), min(1.0, _REMEMBERED_ROWS / max(known, 1.0)))
    return (1.0 - 1.0 / max(_MEMORY_STEPS, _MEMORY_ROWS / rows)) * aged


class SpeedUps:
    """The speed-up of drafting per class of batch sizes: tokens per row and step over the relative cost of the steps.

    A ratio of averages, and no average of ratios: a long step counts as much as it takes.  The class of a batch size is
    its number of binary digits.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float, float]] = {}  # by class: tokens, cost, and how many were entered

    def observe(self, requests: int, tokens: float, cost: float, *, share: float = 1.0, steps: int = 1) -> None:
        """Enter a step.

        Args:
            requests: its rows.
            tokens: tokens that each row that might draft emitted, on average.
            cost: of the step, as a multiple of one without drafts, if all rows draft as much as those.
            share: the rows that might draft, as a share of all.
            steps: since the step entered before; what was entered ages in steps without drafts, too.
        """
        first = _TRUST * self.speed_up(requests), _TRUST, 0.0
        all_tokens, all_cost, count = self._sums.get(requests.bit_length(), first)
        keep = kept_share(requests * share, steps, all_cost * requests * share)
        self._sums[requests.bit_length()] = all_tokens * keep + tokens, all_cost * keep + cost, count + share

    def speed_up(self, requests: int) -> float:
        """Return the speed-up at about this batch size, that of the nearest class at first, or 1."""
        if not self._sums:
            return 1.0
        tokens, cost, _ = self._sums[min(self._sums, key=lambda each: abs(each - requests.bit_length()))]
        return tokens / cost

    def forget(self) -> None:
        """Keep the averages as a first guess only."""
        self._sums = {place: (_TRUST * tokens / cost, _TRUST, 0.0) for place, (tokens, cost, _) in self._sums.items()}

    def is_known(self, requests: int) -> bool:
        """Return whether enough was entered at about this batch size to tell a gain from a loss."""
        count = self._sums.get(requests.bit_length(), (0.0, 0.0, 0.0))[2]
        return count >= _TRUST and count * requests >= _KNOWN_ROWS


DECIDE_EVERY = 8
"""Steps between decisions at the same batch size."""

LIKE = 0.1
"""Relative difference up to which batch sizes share a decision."""

EARLY = 64
"""Number of first steps that are all decided anew."""

GAIN_TO_START, GAIN_TO_KEEP = 0.015, 0.005
"""Least predicted gain over no speculation, to start drafting and to go on."""

TRIALS = 3
"""Steps of a kind, at about a batch size, after which its cost there counts as known."""

REST = 32
"""Most steps without speculation of which one is planned and measured."""

_FIRST, _LAST = 4, 512
"""Steps to the next probe: at first, and at most, as probes that cost no more than other steps change nothing."""

_LAST_OFF, _PER_REQUEST = 256, 64
"""The most steps, and the most per request, to the next probe while nothing is drafted, as probes alone tell then when
drafts have become good, and those of few rows may miss it.
"""

_AFFORDED = 0.004
"""Share of the time that probes may take while nothing is drafted, however often that lets them come."""

_LAG, _FOLLOWING = 4, 8
"""Steps after a probe in which its report arrives, and up to which a probe that found something goes on."""


class Probes:
    """Steps at which a plan half tries something else; they become rare while they change nothing."""

    def __init__(self) -> None:
        self._wait, self._next, self._probe, self._until = _FIRST, _FIRST, 0, 0

    def is_due(self, step: int, *, resumes: int = 0, cost: float = 1.0, added: float = inf) -> bool:
        """Return whether this step is a probe; then the next one is due after twice the time.

        Args:
            step: its number.
            resumes: requests that decode without drafts, so that the probe resumes drafting; 0 while others draft.
            cost: time of a probe relative to other steps; probes that take more than twice as long become rarer.
            added: share by which a probe that finds nothing is longer than other steps; where it is small, probes
                that resume drafting come as often as `_AFFORDED` lets them.
        """
        if step < self._next:
            return step < self._until
        self._probe, self._until = step, step + 1
        most = min(_LAST_OFF, _PER_REQUEST * resumes, max(_FIRST, added / _AFFORDED)) if resumes else _LAST
        longest = round(most * max(1.0, cost - 1.0))
        self._next, self._wait = step + self._wait, min(2 * self._wait, longest)
        return True

    def follow(self, step: int) -> None:
        """Let a probe that may have found something at `step`, its first, go on for a few steps."""
        if step == self._probe:
            self._until = step + _FOLLOWING

    def rest(self, step: int) -> int:
        """Return for how many steps from this one nothing need be decided."""
        if step < self._until + _LAG:
            return 1
        return max(1, min(REST, self._next - step))

    def hasten(self) -> None:
        """Let the following probes come sooner, because something has changed."""
        self._wait = max(_FIRST, self._wait // 4)


def size_class(requests: int) -> int:
    """Return the class of batch sizes that share their trials: quarters of an octave."""
    return round(4 * log2(requests))
