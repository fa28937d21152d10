"""Seconds of an engine's steps: a model fitted to the steps that were timed at start, and slow corrections in service.

The model is a curve of the tokens that a step runs, which has a value of its own at each size that was timed and is
linear between them, so that it may jump, fall or be flat; and terms for requests, context, drafting and draft length.
Nothing is tried out in service: the steps that are run anyway correct the sizes that they have, and through these the
others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf
from operator import attrgetter

import numpy as np
from scipy.optimize import nnls

from specplug.cost.corrections import FIRST, NEWEST, Array, Corrections
from specplug.types.step import StepCost

Curve = Callable[[float], float]
"""Cost of a step by its tokens, in any unit."""

_ASSUMED_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of the steps that stand for measured ones while none was timed."""

_LEAST = 1e-9
"""Least seconds of a step."""

_RIDGE = 1e-2
"""Penalty on the terms beside the curve, so that differences that the curve explains are not taken for theirs."""

_TIMED = 3
_MOST_TIMED = 64
"""Steps of a size, and sizes, that the model is fitted to where no step was timed at start."""

_WRONG = 0.5
"""Median correction, as a logarithm, from which on the model is fitted anew, as the machine has become faster or slower
or was busy at start."""

_PREFILLS = 64
_PREFILLS_USED = 5
"""Number of newest steps whose prompt tokens are assumed to go on, and most of them that a prediction uses."""


class StepCosts:
    """Predicts the seconds of decoding steps by requests, tokens, context and draft length.

    Args:
        assumed: the cost of a step by its tokens, in any unit, until steps are timed.

    Attributes:
        sizes: tokens of the steps that the model was fitted to, ascending.
        basis: what the model rests on: "assumed", "measured at start" or "measured in service".
        is_timed: whether steps were timed at start.
    """

    def __init__(self, assumed: Curve) -> None:
        self.is_timed = False
        self._fit([StepCost(size, size, 0, 0, assumed(size)) for size in _ASSUMED_SIZES], "assumed")
        self._prefills: deque[int] = deque(maxlen=_PREFILLS)
        self._at_start: list[StepCost] = []
        self._newest: deque[StepCost] = deque(maxlen=NEWEST // 2)
        self._first_steps: defaultdict[tuple[int, int, bool], list[StepCost]] = defaultdict(list)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Fit the model to timed steps; fewer than two sizes are ignored."""
        timed = [cost for cost in costs if 0 < cost.seconds < inf and cost.requests]
        if len({cost.tokens for cost in timed}) < 2:
            return
        self._at_start = timed
        self._fit(timed, "measured at start")
        self.is_timed = True

    def observe(self, costs: Sequence[StepCost]) -> None:
        """Correct the model by steps in service."""
        costs = [cost for cost in costs if cost.seconds > 0 and cost.requests]
        if not costs:
            return
        for cost, ratio in zip(costs, self._ratios(costs).tolist(), strict=True):
            self._prefills.append(cost.prompt_tokens)
            self._corrections.add(cost, ratio)
        alone = [cost for cost in costs if not cost.prompt_tokens]
        self._newest += alone
        if not self.is_timed:
            news = [self._is_news(cost) for cost in alone]
            if any(news):
                self._fit_service()
        elif abs(self._corrections.level) > _WRONG and self._newest:
            self._fit_scaled()

    def _ratios(self, costs: Sequence[StepCost]) -> Array:
        """Return the logarithms of measured to predicted seconds of n steps, [n] float64."""
        found: Array = np.log([cost.seconds for cost in costs] / self._model(*_columns(costs)))
        return found

    def _fit_scaled(self) -> None:
        """Fit the model to the newest steps, and to its predictions for the steps timed at start, scaled to these."""
        seconds = self._model(*_columns(self._at_start)) * exp(np.median(self._ratios(self._newest)))
        scaled = [replace(cost, seconds=each) for cost, each in zip(self._at_start, seconds.tolist(), strict=True)]
        self._fit([*scaled, *self._newest], "measured in service")

    def _is_news(self, cost: StepCost) -> bool:
        """Keep the first steps of each size; return whether a size has got enough."""
        size = cost.requests, cost.tokens, cost.draft_length > 0
        if size not in self._first_steps and len(self._first_steps) == _MOST_TIMED:
            return False
        first = self._first_steps[size]
        if len(first) == _TIMED:
            return False
        first.append(cost)
        return len(first) == _TIMED

    def _fit_service(self) -> None:
        """Fit the model to the first steps of each size in service."""
        known = [each for each in self._first_steps.values() if len(each) == _TIMED]
        steps = [sorted(each, key=attrgetter("seconds"))[_TIMED // 2] for each in known]
        if len({step.tokens for step in steps}) > 1:
            self._fit(steps, "measured in service")

    def seconds(
        self, requests: int, context_tokens: float, tokens: Sequence[int], draft_lengths: Sequence[int]
    ) -> Array:
        """Return the predicted seconds of n steps without prompts, [n] float64; in the assumed unit at first.

        Args:
            requests: requests of each step.
            context_tokens: tokens of their contexts together.
            tokens: tokens that each step runs: one per request and the draft tokens.
            draft_lengths: most draft tokens of any request by the plan; 0 where the step drafts nothing.
        """
        found = self._model(requests, context_tokens, tokens, draft_lengths)
        return found * self._corrections.factors([length > 0 for length in draft_lengths], tokens)

    def seconds_beside_prompts(
        self, requests: int, context_tokens: float, tokens: Sequence[int], draft_lengths: Sequence[int]
    ) -> Array:
        """Return the same with the cost that draft tokens have beside the prompts of late, but without the prompts'.

        A prompt is computed once, however fast its request decodes.  The first step is one without drafts.
        """
        alone = self.seconds(requests, context_tokens, tokens, draft_lengths)
        prefills = sorted(prefill for prefill in self._prefills if prefill)
        if not prefills:
            return alone
        share = len(prefills) / len(self._prefills)
        sizes = np.asarray(tokens)
        used = prefills[:: -(-len(prefills) // _PREFILLS_USED)]
        mixed = np.mean([self._model(requests, context_tokens, sizes + each, draft_lengths) for each in used], axis=0)
        scale = alone[0] / float(self._model(requests, context_tokens, tokens[:1], draft_lengths[:1])[0])
        beside: Array = (1 - share) * alone + share * (alone[0] + scale * (mixed - mixed[0]))
        return beside

    def knows(self, *, drafts: bool) -> bool:
        """Return whether steps that verify nothing were run in service, with drafts or without any."""
        return self._corrections.verified_nothing[drafts] >= FIRST

    @property
    def noise(self) -> float:
        """Two standard errors of a relative difference between steps with and without drafts that verify nothing."""
        return self._corrections.noise

    def _fit(self, timed: Sequence[StepCost], basis: str) -> None:
        self.basis = basis
        self._corrections = Corrections()
        self.sizes = sorted({cost.tokens for cost in timed})
        self._knots = np.array(self.sizes, np.float64)
        seconds = np.array([cost.seconds for cost in timed])
        terms = np.concatenate([_terms(cost.requests, cost.context_tokens, [cost.draft_length]) for cost in timed])
        place = np.searchsorted(self._knots, [cost.tokens for cost in timed])
        curve = np.eye(len(self.sizes))[place]
        scale = float(np.median(seconds))
        measured = np.concatenate([curve, terms], axis=1) * (scale / seconds)[:, None]
        ridge = np.eye(terms.shape[1], measured.shape[1], curve.shape[1]) * _RIDGE
        rows = np.concatenate([measured, ridge])
        fitted = nnls(rows, np.concatenate([np.ones_like(seconds), np.zeros(len(ridge))]))[0] * scale
        self._values = fitted[: curve.shape[1]]
        self._weights = fitted[curve.shape[1] :]

    def _model(
        self,
        requests: int | Array,
        context: float | Array,
        tokens: Sequence[int] | Array,
        draft_lengths: Sequence[int] | Array,
    ) -> Array:
        """Return the model's seconds; beyond the largest size they rise like over the upper half of the sizes."""
        sizes = np.asarray(tokens, np.float64)
        curve = np.interp(sizes, self._knots, self._values)
        last = self._knots[-1]
        slope = (self._values[-1] - np.interp(last / 2, self._knots, self._values)) / (last / 2)
        curve += max(0.0, float(slope)) * np.maximum(sizes - last, 0.0)
        found: Array = curve + _terms(requests, context, draft_lengths) @ self._weights
        return np.maximum(found, _LEAST)


def _columns(costs: Sequence[StepCost]) -> tuple[Array, Array, Array, Array]:
    """Return the requests, context tokens, tokens and draft lengths of n steps, each [n] float64."""
    fields = [(cost.requests, cost.context_tokens, cost.tokens, cost.draft_length) for cost in costs]
    requests, context, tokens, draft_lengths = np.array(fields, np.float64).T
    return requests, context, tokens, draft_lengths


def _terms(requests: int | Array, context: float | Array, draft_lengths: Sequence[int] | Array) -> Array:
    """Return the terms beside the curve, [n, 4]: requests, context, drafting at all, and further drafting passes."""
    lengths = np.asarray(draft_lengths, np.float64)
    found = np.empty((len(lengths), 4))
    found[:, 0] = requests / 64
    found[:, 1] = context / 65536
    found[:, 2] = lengths > 0
    found[:, 3] = lengths / 8
    return found
