"""The acceptance of each running request, learnt from its counts of accepted and rejected drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.types.plan import RequestStats

Array = npt.NDArray[np.float64]

_FIRST_RATE, _FIRST_TOKENS = 0.6, 16.0
"""Acceptance to assume before anything was verified, and the number of tokens that it counts as much as."""

_PRIOR_TOKENS = 4.0
"""Number of a request's tokens that the average of all requests counts as much as."""

_MEMORY, _LONG_MEMORY = 32.0, 1024.0
"""Number of decided tokens after which a request's token, or one of the average, counts half."""


class _Seen(NamedTuple):
    """What is known of a request: its totals when they were read, and faded counts of its decided tokens."""

    length: int = 0
    accepted: int = 0
    verified: int = 0
    rejected: int = 0
    good: float = 0.0
    bad: float = 0.0


class Acceptance:
    """The rate at which a request's next draft token is accepted, if those before it are.

    A draft that is rejected after n accepted tokens decides n + 1 tokens; those beyond are undecided.  A request's rate
    is drawn to the average of the server, and what was decided long ago counts less.

    Attributes:
        yields: tokens emitted per token that the target ran, lately.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Seen] = {}
        self._good, self._bad = _FIRST_RATE * _FIRST_TOKENS, (1.0 - _FIRST_RATE) * _FIRST_TOKENS
        self._emitted = self._run = _FIRST_TOKENS

    @property
    def average(self) -> float:
        """The rate of all requests together."""
        return self._good / (self._good + self._bad)

    @property
    def yields(self) -> float:
        return self._emitted / self._run

    def read(self, requests: Sequence[RequestStats]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Learn what happened since the last reading, and forget requests that are not there.

        Returns:
            rates: [B] float64.
            swept: [B] bool, whether all of the request's drafts since then were accepted, and there were some.
        """
        known: dict[str, _Seen] = {}
        new_good = new_bad = emitted = run = 0
        good, bad, swept = [], [], []
        for name, length, _, _, verified, accepted, rejected in requests:
            before = self._known.get(name, _NEW)
            gained, lost = accepted - before.accepted, rejected - before.rejected
            keep = _MEMORY / (_MEMORY + gained + lost)
            seen = _Seen(length, accepted, verified, rejected, keep * before.good + gained, keep * before.bad + lost)
            known[name] = seen
            good.append(seen.good)
            bad.append(seen.bad)
            swept.append(gained > 0 and not lost)
            new_good, new_bad = new_good + gained, new_bad + lost
            if before is not _NEW:
                emitted += length - before.length
                run += length - before.length - gained + verified - before.verified
        self._known = known
        keep = _LONG_MEMORY / (_LONG_MEMORY + new_good + new_bad)
        self._good, self._bad = keep * self._good + new_good, keep * self._bad + new_bad
        keep = _LONG_MEMORY / (_LONG_MEMORY + run)
        self._emitted, self._run = keep * self._emitted + emitted, keep * self._run + run
        hits, misses = np.array(good), np.array(bad)
        rates = (hits + _PRIOR_TOKENS * self.average) / (hits + misses + _PRIOR_TOKENS)
        return rates, np.array(swept, np.bool_)


_NEW = _Seen()
