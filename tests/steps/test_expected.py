"""What drafts are expected to yield: the sums by tensor operations equal a loop over tokens."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps.draft_report import UNIT, survival_sums
from specplug.types.step import Draft

LONGEST = 4
LEVELS = st.integers(0, 16).map(lambda level: level / 16)  # whose products are exact


@st.composite
def rows(draw):
    """Draw a row: the confidence and the parent of each token, and whether it is counted."""
    levels = draw(st.lists(LEVELS, max_size=LONGEST))
    return levels, [draw(st.integers(-1, k - 1)) for k in range(len(levels))], draw(st.booleans())


@settings(max_examples=60)
@given(st.lists(rows(), max_size=5), st.booleans())
def test_sums_are_those_of_a_loop_over_tokens(batch, trees):
    draft = Draft.allocate(len(batch), LONGEST, trees=trees)
    sums = [0] * (LONGEST + 1)
    for row, (levels, parents, is_counted) in enumerate(batch):
        draft.set_row(row, [7] * len(levels), 0.5)
        draft.confidence[row, : len(levels)] = torch.tensor(levels)
        if trees:
            draft.parents[row, : len(levels)] = torch.tensor(parents, dtype=torch.int32)
        sums[0] += is_counted
        path = []
        for k, level in enumerate(levels):
            parent = parents[k] if trees else k - 1
            path.append(Fraction(level) * (path[parent] if parent >= 0 else 1))
            sums[k + 1] += is_counted * int(path[k] * UNIT + Fraction(1, 2))
    counted = torch.tensor([is_counted for *_, is_counted in batch], dtype=torch.bool)
    assert survival_sums(draft, counted).tolist() == sums
