"""Seconds of an engine's steps: a model fitted to the steps that were timed at start, and slow corrections in service.

The model is a curve of the tokens that a step runs, which has a value of its own at each size that was timed and is
linear between them, so that it may jump, fall or be flat; and terms for requests, context, drafting and draft length.
Nothing is tried out in service: the steps that are run anyway correct the sizes that they have, and through these the
others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import inf, log2
from operator import attrgetter, itemgetter

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from specplug.types.plan import StepCost

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
"""Steps of a size from which on they correct anything: a single one may have waited for a kernel to be compiled."""

_PRIOR_STEPS = 8.0
"""Steps that the correction of all sizes together counts for in the correction of one size."""

_FIRST = 8
"""Number of steps in service before anything is corrected."""

_TIMED = 3
_MOST_TIMED = 64
"""Steps of a size, and sizes, that the model is fitted to where no step was timed at start."""

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
        self._first_steps: defaultdict[tuple[int, int, bool], list[StepCost]] = defaultdict(list)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Fit the model to timed steps; fewer than two sizes are ignored."""
        timed = [cost for cost in costs if 0 < cost.seconds < inf and cost.requests]
        if len({cost.tokens for cost in timed}) < 2:
            return
        self._fit(timed, "measured at start")
        self.is_timed = True

    def observe(self, costs: Sequence[StepCost]) -> None:
        """Correct the model by steps in service."""
        costs = [cost for cost in costs if cost.seconds > 0 and cost.requests]
        if not costs:
            return
        fields = [(it.requests, it.context_tokens, it.tokens, it.draft_length, it.seconds) for it in costs]
        requests, context, tokens, draft_lengths, seconds = np.array(fields, np.float64).T
        ratios = np.log(seconds / self._model(requests, context, tokens, draft_lengths))
        for cost, ratio in zip(costs, ratios.tolist(), strict=True):
            self._prefills.append(cost.prompt_tokens)
            mode = _mode(cost.draft_length, cost.tokens - cost.prompt_tokens > cost.requests)
            self._corrections.add(mode, cost.prompt_tokens > 0, cost.tokens, ratio)
        for cost in costs:
            if not self.is_timed and not cost.prompt_tokens:
                self._time_in_service(cost)

    def _time_in_service(self, cost: StepCost) -> None:
        """Fit the model to the first steps of each size, where none was timed at start."""
        size = cost.requests, cost.tokens, cost.draft_length > 0
        if size not in self._first_steps and len(self._first_steps) == _MOST_TIMED:
            return
        first = self._first_steps[size]
        if len(first) == _TIMED:
            return
        first.append(cost)
        if len(first) < _TIMED:
            return
        known = [each for each in self._first_steps.values() if len(each) == _TIMED]
        medians = [sorted(each, key=attrgetter("seconds"))[_TIMED // 2] for each in known]
        if len({step.tokens for step in medians}) > 1:
            self._fit(medians, "measured in service")

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
        modes = [_mode(length, size > requests) for size, length in zip(tokens, draft_lengths, strict=True)]
        return found * self._corrections.factors(modes, tokens)

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

    @property
    def knows_drafting(self) -> bool:
        """Whether steps that drafted and verified nothing were run in service."""
        return self._corrections.has_mode(_DRAFTING)

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


def _terms(requests: int | Array, context: float | Array, draft_lengths: Sequence[int] | Array) -> Array:
    """Return the terms beside the curve, [n, 4]: requests, context, drafting at all, and further drafting passes."""
    lengths = np.asarray(draft_lengths, np.float64)
    found = np.empty((len(lengths), 4))
    found[:, 0] = requests / 64
    found[:, 1] = context / 65536
    found[:, 2] = lengths > 0
    found[:, 3] = lengths / 8
    return found


_PLAIN, _DRAFTING, _VERIFYING = range(3)
"""What a step does: no drafts, drafts of which none is verified, which no step at start does, or drafts that are."""


def _mode(draft_length: int, verifies: bool) -> int:
    if not draft_length:
        return _PLAIN
    return _VERIFYING if verifies else _DRAFTING


class _Corrections:
    """Logarithms of measured to predicted seconds, by what a step does and quarters of octaves of its tokens."""

    def __init__(self) -> None:
        self._cells: defaultdict[tuple[int, bool, int], deque[float]] = defaultdict(lambda: deque(maxlen=_NEWEST))
        self._count = 0
        self._known: dict[int, Array] = {}  # by mode: classes and their corrections; empty until it is needed
        self._level = 0.0

    def add(self, mode: int, has_prompts: bool, tokens: int, ratio: float) -> None:
        """Enter a step: what it does, whether it has prompt tokens, its tokens, and the logarithm."""
        self._cells[mode, has_prompts, _size_class(tokens)].append(ratio)
        self._count += 1
        self._known = {}

    def factors(self, modes: Sequence[int], tokens: Sequence[int]) -> Array:
        """Return the factors of n steps without prompts, [n] float64.

        A size that was not run has those of the nearest ones that were, and a mode that was not run that of all steps.
        """
        if self._count < _FIRST:
            return np.ones(len(modes))
        if not self._known:
            self._update()
        classes = np.array([_size_class(size) for size in tokens], np.float64)
        found = np.full(len(modes), self._level)
        for mode, known in self._known.items():
            is_of_mode = np.array(modes) == mode
            found[is_of_mode] = np.interp(classes[is_of_mode], *known)
        factors: Array = np.exp(found)
        return factors

    def has_mode(self, mode: int) -> bool:
        """Return whether enough steps without prompts were entered of what a step does."""
        return sum(len(cell) for (*of, _), cell in self._cells.items() if of == [mode, False]) >= _FIRST

    def _update(self) -> None:
        medians = {
            key: (len(cell), sorted(cell)[len(cell) // 2]) for key, cell in self._cells.items() if len(cell) >= _FEWEST
        }
        modelled = [median for (mode, *_), median in medians.items() if mode != _DRAFTING]
        self._level = 0.0
        if modelled:
            counts, values = np.array(sorted(modelled, key=itemgetter(1))).T
            self._level = float(values[np.searchsorted(np.cumsum(counts), counts.sum() / 2)])
        known = defaultdict(list)
        for (mode, has_prompts, place), (steps, of_size) in sorted(medians.items()):
            prior = 0.0 if mode == _DRAFTING else _PRIOR_STEPS
            if not has_prompts:
                known[mode].append((place, (steps * of_size + prior * self._level) / (steps + prior)))
        self._known = {mode: np.array(points).T for mode, points in known.items()}


def _size_class(tokens: float) -> int:
    return round(4 * log2(max(tokens, 1)))
