"""Corrections of predicted step costs by recent steps, for each size and for steps with and without drafts."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from math import log2

import numpy as np
import numpy.typing as npt

from specplug.types.step import StepCost

Array = npt.NDArray[np.float64]

NEWEST = 31
"""Number of newest steps of a size whose median corrects it."""

_FEWEST = 3
"""Steps of a size from which on they correct anything alone: a single one may have waited for a kernel to be compiled.
Sizes with fewer are taken together with their neighbours."""

_FAR = 0.5
"""Most that a step of a size with fewer steps counts for, as a logarithm, up or down."""

_PRIOR_STEPS = 2.0
"""Steps that the correction of all sizes together counts for in the correction of one size."""

FIRST = 8
"""Number of steps in service before anything is corrected."""

_TWO_ERRORS = 5.2
"""Two standard errors of the difference of two medians of n steps, in median deviations of one over the root of n."""


class Corrections:
    """Logarithms of measured to predicted seconds, by whether a step drafts and quarters of octaves of its tokens."""

    def __init__(self) -> None:
        self._cells: defaultdict[tuple[bool, bool, int], deque[float]] = defaultdict(lambda: deque(maxlen=NEWEST))
        self._timed: deque[float] = deque(maxlen=NEWEST)  # those of the kinds of steps that start times, too
        self.verified_nothing: Counter[bool] = Counter()  # steps, by whether they drafted
        self._count = 0
        self._known: dict[bool, tuple[Array, Array]] = {}  # classes and corrections without and with drafts

    @property
    def level(self) -> float:
        """The median of the newest steps of kinds that were timed at start."""
        return float(np.median(self._timed)) if len(self._timed) >= FIRST else 0.0

    @property
    def noise(self) -> float:
        """See `StepCosts.noise`; the scatter is that of the cells that are known."""
        known = [np.array(cell) for cell in self._cells.values() if len(cell) >= _FEWEST]
        count = min(NEWEST, *[self.verified_nothing[drafts] for drafts in (False, True)])
        if not known or not count:
            return 0.0
        scatter = np.concatenate([np.abs(cell - np.median(cell)) for cell in known])
        return float(_TWO_ERRORS * np.median(scatter) / np.sqrt(count))

    def add(self, cost: StepCost, ratio: float) -> None:
        """Enter a step and the logarithm."""
        if cost.tokens - cost.prompt_tokens == cost.requests:
            self.verified_nothing[cost.draft_length > 0] += 1
        self._cells[cost.prompt_tokens > 0, cost.draft_length > 0, _size_class(cost.tokens)].append(ratio)
        if not cost.prompt_tokens and (not cost.draft_length or cost.tokens > cost.requests):
            self._timed.append(ratio)
        self._count += 1
        self._known = {}

    def factors(self, drafts: Sequence[bool], tokens: Sequence[int]) -> Array:
        """Return the factors of n steps without prompts, [n] float64, by whether they draft, and their tokens.

        A size that was not run has those of the nearest ones that were; if no step that drafts was, or none that does
        not, they have that of all steps.
        """
        if self._count < FIRST:
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
