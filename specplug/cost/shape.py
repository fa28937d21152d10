"""Shape of a step's cost: a sum of terms that never make more work cheaper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

Array = npt.NDArray[np.float64]

KNOTS = tuple(float(1 << power) for power in range(3, 13))
"""Tokens of a step, 8 to 4096, above which each further token may cost more than those before it."""

CORNERS = (8.0, 32.0, 128.0, 512.0)
"""Tokens of a step up to which tokens cost more than those after them, as where each may need further experts."""

NUM_TERMS = 7 + len(KNOTS) + len(CORNERS)

LEAST = 1e-9
"""Least seconds of a step."""

PENALTIES: Array = np.array([1e-6] * (NUM_TERMS - len(CORNERS)) + [1e-3] * len(CORNERS))
"""Penalties in a fit, so that costs that rise evenly are not taken for ones that flatten where none was measured."""


def terms(requests: Array, tokens: Array, prefill: Array, context: Array, draft_length: Array) -> Array:
    """Return the terms of n steps, [n, NUM_TERMS] float64, for arguments [n] as in `StepCost`.

    They are a constant, one for any drafts (a drafter's first pass, a graph of its own), one per draft token of a row
    (its further passes), the requests, the tokens, what they exceed each knot by, their share of each corner, the
    context, and one for any prompt tokens (another graph), in units that make their usual sizes comparable.  A prompt
    token costs what a draft token does: if it had a term of its own, steps of one draft length could not tell the two
    apart.

    Args:
        prefill: prompt tokens among `tokens`.
    """
    columns = [np.ones_like(tokens), draft_length > 0, draft_length / 8, requests / 64, tokens / 64, context / 65536]
    columns += [prefill > 0]
    columns += [np.maximum(tokens - knot, 0.0) / 64 for knot in KNOTS]
    columns += [np.minimum(tokens, corner) / corner for corner in CORNERS]
    return np.stack(columns, axis=1).astype(np.float64)


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
