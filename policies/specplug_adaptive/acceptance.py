"""Acceptance of each request's draft tokens, shrunk to that of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.types.plan import RequestStats

Array = npt.NDArray[np.float64]

_FIRST_RATE = 0.6
_FIRST_TOKENS = 16.0
"""Acceptance to assume before anything was verified, and the number of tokens that it counts as much as."""

_PRIOR_TOKENS = 4.0
"""Number of a request's tokens that the average of all requests counts as much as."""

_MEMORY = 32.0
_LONG_MEMORY = 1024.0
"""Number of decided tokens after which a request's token, or one of the average, counts half."""


class _Decided(NamedTuple):
    """What is known of a request: its totals when they were read, and faded counts of its decided tokens."""

    accepted: int = 0
    rejected: int = 0
    good: float = 0.0
    bad: float = 0.0


_NEW = _Decided()


class RequestAcceptance:
    """The rate at which a request's next draft token is accepted, if those before it are.

    A draft that is rejected after n accepted tokens decides n + 1 tokens; those beyond are undecided.  A request's rate
    is drawn to the average of the server, and what was decided long ago counts less.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Decided] = {}
        self._good = _FIRST_RATE * _FIRST_TOKENS
        self._bad = (1.0 - _FIRST_RATE) * _FIRST_TOKENS

    @property
    def average_rate(self) -> float:
        """The rate of all requests together."""
        return self._good / (self._good + self._bad)

    def read(self, requests: Sequence[RequestStats]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Learn what happened since the last reading, and forget requests that are not there.

        Returns:
            rates: [B] float64.
            swept: [B] bool, whether all of the request's drafts since then were accepted, and there were some.
        """
        known: dict[str, _Decided] = {}
        rows: list[tuple[float, float, int, int]] = []
        for name, _, _, _, _, accepted, rejected in requests:
            before = self._known.get(name, _NEW)
            if accepted < before.accepted or rejected < before.rejected:
                before = _NEW  # another request of the same name
            gained = accepted - before.accepted
            lost = rejected - before.rejected
            keep = _MEMORY / (_MEMORY + gained + lost)
            seen = known[name] = _Decided(accepted, rejected, keep * before.good + gained, keep * before.bad + lost)
            rows.append((seen.good, seen.bad, gained, lost))
        self._known = known
        good, bad, gains, losses = np.array(rows).T
        keep = _LONG_MEMORY / (_LONG_MEMORY + gains.sum() + losses.sum())
        self._good = float(keep * self._good + gains.sum())
        self._bad = float(keep * self._bad + losses.sum())
        return (good + _PRIOR_TOKENS * self.average_rate) / (good + bad + _PRIOR_TOKENS), (gains > 0) & (losses == 0)
