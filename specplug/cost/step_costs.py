"""Seconds of an engine's steps: a model fitted to the steps that were timed at start, and slow corrections in service.

The model is a curve of the tokens that a step runs, which has a value of its own at each size that was timed and is
linear between them, so that it may jump, fall or be flat; and terms for requests, context, drafting and draft length.
Nothing is tried out in service: the steps that are run anyway correct the sizes that they have, and through these the
others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, log2
from operator import attrgetter

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from specplug.types.step import StepCost

Array = npt.NDArray[np.float64]

Curve = Callable[[float], float]
"""Cost of a step by its tokens, in any unit."""

_ASSUMED_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of the steps that stand for measured ones while none was timed."""

_LEAST = 1e-9
"""Least seconds of a step."""

_RIDGE = 1e-2
"""Penalty on the terms beside the curve, so that differences that the curve explains are not taken for theirs."""

_NEWEST = 31
"""Number of newest steps of a size whose median corrects it."""

_FEWEST = 3
"""Steps of a size from which on they correct anything alone: a single one may have waited for a kernel to be compiled.
Sizes with fewer are taken together with their neighbours."""

_FAR = 0.5
"""Most that a step of a size with fewer steps counts for, as a logarithm, up or down."""

_PRIOR_STEPS = 2.0
"""Steps that the correction of all sizes together counts for in the correction of one size."""

_FIRST = 8
"""Number of steps in service before anything is corrected."""

_TIMED = 3
_MOST_TIMED = 64
"""Steps of a size, and sizes, that the model is fitted to where no step was timed at start."""

_WRONG = 0.5
"""Median correction, as a logarithm, from which on the model is fitted anew, as the machine has become faster or slower
or was busy at start."""

_TWO_ERRORS = 5.2
"""Two standard errors of the difference of two medians of n steps, in median deviations of one over the root of n."""

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
        self._newest: deque[StepCost] = deque(maxlen=_NEWEST // 2)
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
        """Fit the model to the newest steps, and to its own predictions for the steps timed at start at their level."""
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
        return self._corrections.verified_nothing[drafts] >= _FIRST

    @property
    def noise(self) -> float:
        """Two standard errors of a relative difference between steps with and without drafts that verify nothing."""
        return self._corrections.noise

    def _fit(self, timed: Sequence[StepCost], basis: str) -> None:
        self.basis = basis
        self._corrections = _Corrections()
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


class _Corrections:
    """Logarithms of measured to predicted seconds, by whether a step drafts and quarters of octaves of its tokens."""

    def __init__(self) -> None:
        self._cells: defaultdict[tuple[bool, bool, int], deque[float]] = defaultdict(lambda: deque(maxlen=_NEWEST))
        self._timed: deque[float] = deque(maxlen=_NEWEST)  # those of the kinds of steps that start times, too
        self.verified_nothing: Counter[bool] = Counter()  # steps, by whether they drafted
        self._count = 0
        self._known: dict[bool, tuple[Array, Array]] = {}  # classes and corrections without and with drafts

    @property
    def level(self) -> float:
        """The median of the newest steps of kinds that were timed at start."""
        return float(np.median(self._timed)) if len(self._timed) >= _FIRST else 0.0

    @property
    def noise(self) -> float:
        """See `StepCosts.noise`; the scatter is that of the cells that are known."""
        known = [np.array(cell) for cell in self._cells.values() if len(cell) >= _FEWEST]
        count = min(_NEWEST, *[self.verified_nothing[drafts] for drafts in (False, True)])
        if not known or not count:
            return 0.0
        scatter = np.concatenate([np.abs(cell - np.median(cell)) for cell in known])
        return float(_TWO_ERRORS * np.median(scatter) / np.sqrt(count))

    def add(self, cost: StepCost, ratio: float) -> None:
        """Enter a step and the logarithm."""
        if cost.tokens == cost.requests:
            self.verified_nothing[cost.draft_length > 0] += 1
        self._cells[cost.prompt_tokens > 0, cost.draft_length > 0, _size_class(cost.tokens)].append(ratio)
        if not cost.draft_length or cost.tokens - cost.prompt_tokens > cost.requests:
            self._timed.append(ratio)
        self._count += 1
        self._known = {}

    def factors(self, drafts: Sequence[bool], tokens: Sequence[int]) -> Array:
        """Return the factors of n steps without prompts, [n] float64, by whether they draft, and their tokens.

        A size that was not run has those of the nearest ones that were; if no step that drafts was, or none that does
        not, they have that of all steps.
        """
        if self._count < _FIRST:
            return np.ones(len(drafts))
        if not self._known:
            self._update()
        classes = np.array([_size_class(size) for size in tokens], np.float64)
        found = np.full(len(drafts), self.level)
        for kind, known in self._known.items():
            is_of_kind = np.array(drafts) == kind
            found[is_of_kind] = np.interp(classes[is_of_kind], *known)
        factors: Array = np.exp(found)
        return factors

    def _update(self) -> None:
        self._known = {}
        for kind in (False, True):
            cells = sorted(
                (place, cell) for (beside, of, place), cell in self._cells.items() if of == kind and not beside
            )
            if pools := _pooled(cells):
                places, steps, medians = np.array(pools).T
                self._known[kind] = places, (steps * medians + _PRIOR_STEPS * self.level) / (steps + _PRIOR_STEPS)


def _pooled(cells: Sequence[tuple[int, Sequence[float]]]) -> list[tuple[float, int, float]]:
    """Return the class, number and median of steps of neighbouring cells that have enough steps together."""
    found: list[tuple[float, int, float]] = []
    places: list[int] = []
    ratios: list[float] = []
    for place, cell in cells:
        is_known = len(cell) >= _FEWEST
        if is_known and len(ratios) < _FEWEST:
            places = []
            ratios = []
        places += [place] * len(cell)
        ratios += cell if is_known else np.clip(cell, -_FAR, _FAR).tolist()
        if len(ratios) >= _FEWEST:
            found.append((sum(places) / len(places), len(ratios), sorted(ratios)[len(ratios) // 2]))
            places = []
            ratios = []
    return found


def _size_class(tokens: float) -> int:
    return round(4 * log2(max(tokens, 1)))
