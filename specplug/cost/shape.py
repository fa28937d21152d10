"""Shape of a step's cost: a sum of terms that never make more work cheaper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

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
    apart.

    Args:
        prefill: prompt tokens among `tokens`.
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
