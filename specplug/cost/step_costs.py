"""Step costs learnt online from the durations that an engine's planner measures.

Two estimates are joined.  A fit over all steps, a sum of terms that are never negative, extends to steps that were not
run.  A correction for steps of one draft length and about one batch size holds what the sum cannot express, such as
which steps find a CUDA graph; it counts as much as it has been measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log

import numpy as np

from specplug.cost.estimates import (
    AGREEING,
    CELL_SIZE,
    LEAST,
    NUM_TERMS,
    PENALTIES,
    Array,
    Cell,
    Curve,
    curve_of,
    nonnegative_fit,
    shrunk,
    terms,
)
from specplug.types.plan import StepCost

_PRIOR_STEPS = 32.0
"""Number of measured steps after which the prior counts a sixteenth."""

_PRIOR_BATCHES, _PRIOR_LENGTHS = (1, 4, 16, 64, 256), (0, 1, 3, 7, 15)
_THINNED, _REFIT_EVERY = 4, 32
"""Of the steps of a cell with all its measurements one in so many is learnt from, and steps between two fits."""

_MEMORY = 4096.0
"""Number of steps after which a measurement counts a third."""

_NEAR, _MOST_NEARBY = 3, 3
"""Quarters of an octave up to which a batch size is like another, and the most measurements that count there."""

_MOST_OFF = 0.7
"""Largest error of one prediction that counts, as a logarithm; pauses and compilations exceed it."""

_PREFILLS, _PREFILLS_USED = 64, 6
"""Number of newest steps whose prompt tokens are assumed to go on, and most of them that a prediction uses."""

_MIXED_TRUSTED = 32
"""Number of first steps with prompt tokens that are learnt from however far they are off."""

_KNOWN, _ERROR_MEMORY = 4, 128
"""Least measurements of a cell whose next one counts for the error, and the steps over which that is averaged."""

_FIRST_ERROR, _VARIANCE = 0.05, 1.57
"""Error to assume at first, and variance of a normal variable whose mean absolute value is 1."""


class StepCosts:
    """Learns what a decoding step costs, by requests, tokens, context and draft length.

    Steps with prompt tokens are learnt from by the fit alone.  Predictions assume as many of them as there were lately,
    because a draft token costs more in a step that prompts have filled.  `prior` is a relative cost by tokens, whose
    scale is learnt from the first steps.

    Attributes:
        error: mean relative error of the predictions of steps before they were learnt, lately; None at first.
    """

    def __init__(self, prior: Curve) -> None:
        self._prior, self._is_profiled = prior, False
        self._measured, self._assumed = _Moments(), _Moments()
        self._weights = np.zeros(NUM_TERMS)
        self._cells: dict[tuple[bool, int, int], Cell] = {}
        self._prefills: deque[int] = deque(maxlen=_PREFILLS)  # prompt tokens of the newest steps
        self._seen = self._steps = self._mixed = 0
        self._drafted = True  # in the step before
        self.error: float | None = None

    @property
    def is_measured(self) -> bool:
        """True once a step was learnt from."""
        return self._steps > 0

    @property
    def basis(self) -> str:
        """What predictions rest on, in words."""
        if self.is_measured:
            return "measured"
        return "profiled by the engine at start-up" if self._is_profiled else "assumed, as no step was measured yet"

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Replace the prior by what an engine profiled, if that shows what tokens cost; its scale is learnt as well."""
        if (curve := curve_of(costs)) is not None and not self.is_measured:
            self._prior, self._is_profiled = curve, True

    def observe(self, cost: StepCost) -> None:
        """Learn from a measured step, unless it is the first with drafts after some without.

        That one's cost depends on how much its proposer has to catch up with.
        """
        if cost.seconds <= 0 or not cost.requests:
            return
        prefill = cost.prompt_tokens
        self._prefills.append(prefill)
        resumes, self._drafted = cost.draft_length > 0 and not self._drafted, cost.draft_length > 0
        if resumes:
            return
        if prefill:
            self._observe_prefill(cost, prefill)
            return
        cell = self._cells.setdefault(_cell(cost.requests, cost.tokens, cost.draft_length), Cell())
        self._seen += 1
        if len(cell) == CELL_SIZE and self._seen % _THINNED:
            return
        row = _terms_of(cost.requests, [cost.tokens], 0, cost.context_tokens, [cost.draft_length])[0]
        if not self._steps:
            self._start(cost)
        off = log(cost.seconds / max(float(row @ self._weights), LEAST))
        count, correction = self._correction(cost.requests, cost.tokens, cost.draft_length)
        if count >= _KNOWN:
            wrong = min(abs(off - correction), _MOST_OFF)
            self.error = wrong if self.error is None else self.error + (wrong - self.error) / _ERROR_MEMORY
        cell.add(row, cost.seconds)
        if abs(off - cell.correction(self._weights)[1]) <= AGREEING:
            self._learn(row, cost.seconds)

    def seconds(
        self,
        requests: int,
        context_tokens: float,
        tokens: Sequence[int],
        draft_lengths: Sequence[int],
        pace: Array | float = 1.0,
    ) -> Array:
        """Return the predicted mean seconds of n steps, [n] float64; relative at first.

        Args:
            requests: requests of each step.
            context_tokens: tokens of their contexts together.
            tokens: tokens that each step runs: one per request and the draft tokens.
            draft_lengths: the most draft tokens of any request.
            pace: [n], tokens that a step of each length emits, as multiples of what steps emitted lately: requests end
                sooner, and prompts fill so many more of the steps.
        """
        decoding = self._decoding_seconds(requests, context_tokens, tokens, draft_lengths)
        return self._with_prompts(decoding, requests, context_tokens, tokens, draft_lengths, pace)

    def seconds_beside_prompts(
        self, requests: int, context_tokens: float, tokens: Sequence[int], draft_lengths: Sequence[int]
    ) -> Array:
        """Return the predicted mean seconds of n steps without those of their prompts, [n] float64.

        A prompt is computed once, however fast its request decodes, so tokens per second are highest where these
        seconds per token are least.  What prompts add to the cost of draft tokens is included.  The arguments are those
        of `seconds`; the first step is one without drafts.
        """
        decoding = self._decoding_seconds(requests, context_tokens, tokens, draft_lengths)
        found = self._with_prompts(decoding, requests, context_tokens, tokens, draft_lengths)
        return found - float(found[0]) + float(decoding[0])

    def _with_prompts(
        self,
        decoding: Array,
        requests: int,
        context_tokens: float,
        tokens: Sequence[int],
        draft_lengths: Sequence[int],
        pace: Array | float = 1.0,
    ) -> Array:
        """Return the mean seconds of steps of which some have prompt tokens, from those of steps that have none."""
        prefills = [prefill for prefill in self._prefills if prefill]
        if not prefills or not self._steps:
            return decoding
        some = prefills[:: -(-len(prefills) // _PREFILLS_USED)]
        share = pace * (len(prefills) / len(self._prefills)) * np.ones_like(decoding)
        # Where every step has prompt tokens, each has as many more.
        scale, share = np.maximum(share, 1.0), np.minimum(share, 1.0)
        mixed = [
            _terms_of(requests, tokens + prefill * scale, prefill * scale, context_tokens, draft_lengths)
            for prefill in some
        ]
        both: Array = (1 - share) * decoding + share * (np.mean(mixed, axis=0) @ self._weights)
        return both

    def _decoding_seconds(
        self, requests: int, context_tokens: float, tokens: Sequence[int], draft_lengths: Sequence[int]
    ) -> Array:
        """Return the predicted seconds of steps without prompt tokens; relative at first."""
        if not self._steps:
            return np.array([self._prior(each) for each in tokens])
        found = _terms_of(requests, tokens, 0, context_tokens, draft_lengths) @ self._weights
        cells = [self._correction(requests, *each) for each in zip(tokens, draft_lengths, strict=True)]
        counts, means = np.array(cells).T
        noise = _FIRST_ERROR if self.error is None else self.error
        decoding: Array = np.maximum(found, LEAST) * np.exp(shrunk(counts, means, _VARIANCE * noise**2))
        return decoding

    def _observe_prefill(self, cost: StepCost, prefill: int) -> None:
        """Learn from a step with prompt tokens, once the scale is known; steps that are far off are left out."""
        if not self._steps:
            return
        row = _terms_of(cost.requests, [cost.tokens], prefill, cost.context_tokens, [cost.draft_length])[0]
        if self._mixed < _MIXED_TRUSTED or abs(log(cost.seconds / max(float(row @ self._weights), LEAST))) < _MOST_OFF:
            self._mixed += 1
            self._learn(row, cost.seconds)

    def measured(self, requests: int, tokens: int, draft_length: int) -> float:
        """Return how many steps like this one, at about this batch size, were learnt from; see `_correction`."""
        return self._correction(requests, tokens, draft_length)[0]

    def _correction(self, requests: int, tokens: int, draft_length: int) -> tuple[float, float]:
        """Return the weight of a cell's correction and the correction, those of like batch sizes included."""
        drafts, ratio, place = _cell(requests, tokens, draft_length)
        total = correction = 0.0
        for other in range(place - _NEAR, place + _NEAR + 1):
            cell = self._cells.get((drafts, ratio, other))
            if cell:
                count, value = cell.correction(self._weights)
                weight = count if other == place else min(count, _MOST_NEARBY)
                total, correction = total + weight, correction + weight * value
        return total, correction / total if total else 0.0

    def _start(self, cost: StepCost) -> None:
        """Scale the prior to the first measured step, and enter it as measurements."""
        scale = cost.seconds / self._prior(cost.tokens)
        for requests in _PRIOR_BATCHES:
            for length in _PRIOR_LENGTHS:
                tokens = requests * (length + 1)
                seconds = scale * self._prior(tokens)
                self._assumed.add(_terms_of(requests, [tokens], 0, 0.0, [length])[0], seconds)
        self._fit()

    def _learn(self, row: Array, seconds: float) -> None:
        self._measured.fade(1.0 - 1.0 / _MEMORY)
        self._measured.add(row, seconds)
        self._steps += 1
        if self._steps < _REFIT_EVERY or self._steps % _REFIT_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        trust = (_PRIOR_STEPS / (_PRIOR_STEPS + self._seen)) ** 4
        gram = self._measured.gram + trust * self._assumed.gram
        self._weights = nonnegative_fit(gram, self._measured.moment + trust * self._assumed.moment, PENALTIES)
        for cell in self._cells.values():
            cell.known = None


class _Moments:
    """Sums over measurements from which they can be fitted, weighted so that relative errors count."""

    def __init__(self) -> None:
        self.gram, self.moment = np.zeros((NUM_TERMS, NUM_TERMS)), np.zeros(NUM_TERMS)

    def add(self, row: Array, seconds: float) -> None:
        scaled = row / seconds
        self.gram += np.outer(scaled, scaled)
        self.moment += scaled

    def fade(self, share: float) -> None:
        self.gram *= share
        self.moment *= share


def _terms_of(
    requests: float, tokens: Sequence[float] | Array, prefill: float | Array, context: float, lengths: Sequence[int]
) -> Array:
    return terms(requests, np.asarray(tokens, np.float64), prefill, context, np.asarray(lengths, np.float64))


def _cell(requests: int, tokens: int, draft_length: int) -> tuple[bool, int, int]:
    """Return the cell of a step: whether it drafts, and quarters of octaves of tokens per request and batch size."""
    return draft_length > 0, round(4 * log(tokens / requests, 2)), round(4 * log(requests, 2))
