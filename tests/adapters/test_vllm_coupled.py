"""Which drawn tokens of V2's seeded rows are emitted, against plain Python.  Needs no vLLM."""

from __future__ import annotations

from random import Random

import pytest
import torch

from specplug_vllm.worker.verifier_v2 import kept


@pytest.mark.parametrize("seed", range(20))
def test_a_row_emits_what_was_drawn_up_to_the_first_other_draft_token(seed):
    random, longest = Random(seed), 4
    lengths = [random.randint(0, longest) for _ in range(random.randint(1, 6))]
    drawn = [[random.randrange(3) for _ in range(length + 1)] for length in lengths]
    drafts = [[random.choice([token, token, random.randrange(-1, 3)]) for token in row[:-1]] for row in drawn]
    inputs = [token for draft in drafts for token in (random.randrange(3), *draft)]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length + 1)
    found, counts = kept(
        torch.tensor([token for row in drawn for token in row]),
        torch.tensor(inputs, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        longest,
    )
    assert (found.shape, found.dtype, counts.dtype) == ((len(lengths), longest + 1), torch.int64, torch.int32)
    for row, (tokens, draft) in enumerate(zip(drawn, drafts, strict=True)):
        equal = next((place for place, token in enumerate(draft) if token != tokens[place]), len(draft))
        assert counts[row] == equal + 1
        assert found[row, : equal + 1].tolist() == tokens[: equal + 1]
