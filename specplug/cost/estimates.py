"""The two estimates of a step's cost: a sum of terms that never make more work cheaper, and corrections of like steps.

Before the first measured step, the sum may start from a curve that the engine profiled.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import inf, log

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from specplug.types.plan import StepCost

Array = npt.NDArray[np.float64]

KNOTS = tuple(float(1 << power) for power in range(3, 13))
"""Tokens of a step, 8 to 4096, above which each further token may cost more than those before it."""

CORNERS = (2.0, 8.0, 32.0, 128.0, 512.0)
"""Tokens of a step up to which tokens cost more than those after them, as where each may need further experts, and on
CPUs, where a step of one token multiplies by vectors.
"""

NUM_TERMS = 7 + len(KNOTS) + len(CORNERS)

_KNOTS, _CORNERS = np.array(KNOTS), np.array(CORNERS)

LEAST = 1e-9
"""Least seconds of a step."""

PENALTIES: Array = np.array([1e-6] * (NUM_TERMS - len(CORNERS)) + [1e-3] * len(CORNERS))
"""Penalties in a fit, so that costs that rise evenly are not taken for ones that flatten where none was measured."""


def terms(
    requests: Array | float, tokens: Array, prefill: Array | float, context: Array | float, draft_length: Array
) -> Array:
    """Return the terms of n steps, [n, NUM_TERMS] float64, for arguments [n] or of all steps, as in `StepCost`.

    They are a constant, one for any drafts (a drafter's first pass, a graph of its own), one per draft token of a row
    (its further passes), the requests, the tokens, what they exceed each knot by, their share of each corner, the
    context, and one for any prompt tokens (another graph), in units that make their usual sizes comparable.  A prompt
    token costs what a draft token does: if it had a term of its own, steps of one draft length could not tell the two
    apart.  `prefill` counts the prompt tokens among `tokens`.
    """
    found = np.empty((len(tokens), NUM_TERMS))
    found[:, 0] = 1.0
    found[:, 1] = draft_length > 0
    found[:, 2] = draft_length / 8
    found[:, 3] = requests / 64
    found[:, 4] = tokens / 64
    found[:, 5] = context / 65536
    found[:, 6] = prefill > 0
    found[:, 7 : -len(CORNERS)] = np.maximum(tokens[:, None] - _KNOTS, 0.0) / 64
    found[:, -len(CORNERS) :] = np.minimum(tokens[:, None], _CORNERS) / _CORNERS
    return found


def nonnegative_fit(gram: Array, moment: Array, penalties: Array) -> Array:
    """Minimise x' gram x / 2 - moment' x over x >= 0; terms that no step had stay 0.

    Args:
        gram: [n, n], positive semidefinite.
        moment: [n].
        penalties: [n], of the squares of the terms' shares; above 0, so that collinear terms have a solution.
    """
    scale = np.sqrt(np.diag(gram))
    seen = scale > 0
    scale = scale[seen]
    scaled = gram[np.ix_(seen, seen)] / np.outer(scale, scale) + np.diag(penalties[seen])
    root = np.linalg.cholesky(scaled).T
    found = np.zeros_like(moment)
    found[seen] = nnls(root, np.linalg.solve(root.T, moment[seen] / scale))[0] / scale
    return found


Curve = Callable[[float], float]
"""Cost of a step by its number of tokens, in any unit."""


def curve_of(costs: Sequence[StepCost]) -> Curve | None:
    """Return the seconds of a step by its tokens, which never fall; None if fewer than two sizes were profiled.

    Between sizes it is linear, and beyond the largest it goes on as before.  Requests and context do not matter: the
    steps that an engine profiles have as many requests as they can, of one context length, so what either costs cannot
    be told apart from what tokens cost.
    """
    profiled: defaultdict[int, list[float]] = defaultdict(list)
    for cost in costs:
        if 0 < cost.seconds < inf:
            profiled[cost.tokens].append(cost.seconds)
    if len(profiled) < 2:
        return None
    sizes = np.array(sorted(profiled), np.float64)
    seconds = np.maximum.accumulate([float(np.median(profiled[size])) for size in sorted(profiled)])
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])

    def curve(tokens: float) -> float:
        return float(np.interp(tokens, sizes, seconds) + slope * max(0.0, tokens - sizes[-1]))

    return curve


CELL_SIZE = 24
"""Number of newest measurements that a correction is made from."""

AGREEING = 0.2
"""Largest distance of a logarithm from the median of its cell at which it counts."""

_TRUST = 0.5
"""Least number of measurements at which a correction counts half."""


class Cell:
    """The newest measurements of steps of one draft length and about one batch size.

    `known` is the number of measurements and their correction under the newest fit, once computed.
    """

    def __init__(self) -> None:
        self.known: tuple[int, float] | None = None
        self._rows: deque[Array] = deque(maxlen=CELL_SIZE)
        self._logs: deque[float] = deque(maxlen=CELL_SIZE)

    def add(self, row: Array, seconds: float) -> None:
        """Add the terms of a step, [NUM_TERMS], and its seconds; the oldest measurement may drop out."""
        self._rows.append(row)
        self._logs.append(log(seconds))
        self.known = None

    def __len__(self) -> int:
        return len(self._logs)

    def correction(self, weights: Array) -> tuple[int, float]:
        """Return how many measurements there are, and by how much, as a logarithm, they exceed the fit.

        It is the mean of those that agree with their median.
        """
        if self.known is None:
            over = np.array(self._logs) - np.log(np.maximum(np.stack(self._rows) @ weights, LEAST))
            middle = float(np.median(over))
            near = over[np.abs(over - middle) <= AGREEING]
            self.known = len(over), float(near.mean()) if len(near) else middle
        return self.known


def shrunk(counts: Array, corrections: Array, noise: float) -> Array:
    """Return the corrections of k cells, [k] float64, shrunk toward their mean as far as noise explains differences.

    Prices follow from differences between cells, and would follow noise otherwise.  The variance of the true
    corrections is estimated as in a random-effects model (DerSimonian and Laird, "Meta-analysis in clinical trials",
    1986).  A cell without measurements gets the mean, which few measurements draw away from 0 only in part.

    Args:
        counts: [k] float64, measurements of each cell.
        corrections: [k] float64, their means; ignored where there are none.
        noise: variance of one measurement.
    """
    total = counts.sum()
    if not total:
        return np.zeros_like(corrections)
    mean = counts @ corrections / total
    spread = counts @ (corrections - mean) ** 2 - (np.count_nonzero(counts) - 1) * noise
    between = spread / max(total - counts @ counts / total, LEAST)
    trust = max(_TRUST, noise / between) if between > 0 else np.inf
    shares = counts / (counts + trust)
    found: Array = shares * corrections + (1 - shares) * mean * total / (total + _TRUST)
    return found
