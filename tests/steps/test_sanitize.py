"""What proposers write is cut alike in operations on arrays and on tensors, whatever it is."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps.sanitize import sanitize_arrays, sanitize_tensors
from specplug.types.step import Draft
from tests.steps.trim_tools import bits

VOCAB = 5
NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 3, VOCAB - 1, VOCAB, 2**31 - 1)
LEVELS = (float("nan"), float("inf"), -float("inf"), -0.5, 0.0, 1e-40, 0.5, 1.0, 1.5)


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=200)
def test_both_forms_cut_alike(random, trees):
    rows, columns = random.randint(0, 4), random.randint(1, 6)
    drafts = [Draft.allocate(rows + 1, columns + 2, trees=trees, sources=("a", "b")) for _ in range(2)]
    is_sound = random.random() < 0.5
    for tensors in zip(*([it.token_ids, it.source, it.lengths, it.parents] for it in drafts), strict=True):
        if tensors[0] is not None:
            values = range(2) if is_sound else NUMBERS
            drawn = [random.choice(values) for _ in range(tensors[0].numel())]
            for tensor in tensors:
                tensor.copy_(torch.tensor(drawn, dtype=torch.int32).view(tensor.shape))
    levels = torch.tensor([random.choice(LEVELS) for _ in range(drafts[0].confidence.numel())])
    limits = torch.tensor([random.randint(0, columns) for _ in range(rows)], dtype=torch.int32)
    for draft, form in zip(drafts, (sanitize_tensors, sanitize_arrays), strict=True):
        draft.confidence.copy_(levels.view(draft.confidence.shape))
        form(draft.view(rows, columns), limits, VOCAB)
        draft.confidence.add_(0.0)  # -0 equals 0
    assert bits(drafts[0]) == bits(drafts[1])
