"""Acceptance by position in the draft, learnt from verified drafts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specplug.types.plan import StepReport

Array = npt.NDArray[np.float64]

_FIRST_RATE = 0.6
"""Acceptance to assume before anything was verified."""

_LONG_MEMORY = 256.0
"""First tokens over which their acceptance is averaged."""

_PRIOR_TOKENS = 4.0
"""Number of tested tokens that a position's prior, the rate of the position before it, counts as much as."""

_MEMORY_STEPS, _MEMORY_TOKENS = 48.0, 768.0
"""Steps after which an observation counts a third: at least the first number, and enough for so many rows."""

_FADE_UNTRIED = 1.0 - 1.0 / 1024
"""Share of the observations at a position that is left after a step that did not draft so far."""


class AcceptanceCurve:
    """The rate at which the token at each position is accepted if those before it are.

    Tokens after a rejection, and positions that no plan reached, are unobserved and not counted.  What was observed
    fades, so that a position that is not tried for long falls back to the rate of the one before it.

    Args:
        most: the longest draft.
    """

    def __init__(self, most: int) -> None:
        self._tested, self._accepted = np.zeros(most), np.zeros(most)
        self._average = _FIRST_RATE  # of the first position, over a long time

    def observe(self, report: StepReport) -> None:
        """Learn from the results of a step."""
        if not report.draft_length:
            return
        places = min(len(report.tested_at), len(self._tested))
        fade = 1.0 - 1.0 / max(_MEMORY_STEPS, _MEMORY_TOKENS / max(1, report.requests))
        for counts in (self._tested, self._accepted):
            counts[:places] *= fade
            counts[places:] *= _FADE_UNTRIED
        self._tested[:places] += report.tested_at[:places]
        self._accepted[:places] += report.accepted_at[:places]
        if places and report.tested_at[0]:
            share = report.tested_at[0] / (_LONG_MEMORY + report.tested_at[0])
            self._average += share * (report.accepted_at[0] / report.tested_at[0] - self._average)

    def rates(self, optimism: float = 0.0) -> Array:
        """Return the acceptance rate of each position, [most] float64.

        Args:
            optimism: number of standard errors to add.
        """
        found = np.empty_like(self._tested)
        before = self._average
        for place, (tested, accepted) in enumerate(zip(self._tested.tolist(), self._accepted.tolist(), strict=True)):
            total = tested + _PRIOR_TOKENS
            before = (accepted + _PRIOR_TOKENS * before) / total
            found[place] = before
        if optimism:
            spread = np.sqrt(np.maximum(found * (1.0 - found), 0.01) / (self._tested + 1.0))
            found = np.minimum(found + optimism * spread, 1.0)
        return found

    def expected_tokens(self, optimism: float = 0.0) -> Array:
        """Return the tokens that a row emits per step at each draft length, [most + 1] float64, 1 at length 0."""
        return np.concatenate(([1.0], 1.0 + np.cumsum(np.cumprod(self.rates(optimism)))))
