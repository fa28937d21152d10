"""What the learning plan halves share: when to decide anew, how much to gain, and when to try something else."""

from __future__ import annotations

from math import inf, log2

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
