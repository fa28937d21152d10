"""What is counted as the departure of SGLang's own lossy acceptance; see also `test_sampling`."""

from __future__ import annotations

import pytest
import torch
from sgl_kernel.sampling import tree_speculative_sampling_target_only

from specplug_sglang.verification.lossy import departed


@pytest.mark.parametrize(("single", "acc"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.5), (0.3, 0.5)])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.4, 0.8, 1.0])
def test_it_is_how_much_more_often_a_draft_is_accepted(single, acc, chance):
    """One draft token at every number of a fine grid, by the rule that SGLang's options state."""
    rows = 1000
    coins = (torch.arange(rows) + 0.5) / rows
    probs = torch.tensor([1 - chance, chance]).expand(rows, 2, 2)
    candidates = torch.tensor([[0, 1]]).expand(rows, 2)
    accept_index = torch.full((rows, 2), -1, dtype=torch.int32)
    accept_token_num = torch.zeros(rows, dtype=torch.int32)
    tree_speculative_sampling_target_only(
        predicts=torch.zeros(rows * 2, dtype=torch.int32),
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates,
        retrive_index=torch.arange(rows * 2).view(rows, 2),
        retrive_next_token=torch.tensor([[1, -1]]).expand(rows, 2),
        retrive_next_sibling=torch.full((rows, 2), -1),
        uniform_samples=torch.stack([coins, coins], 1),
        uniform_samples_for_final_sampling=torch.full((rows,), 0.5),
        target_probs=probs,
        draft_probs=torch.zeros_like(probs),
        threshold_single=single,
        threshold_acc=acc,
        deterministic=True,
    )
    accepted = accept_token_num.double().mean().item()
    assert accepted == pytest.approx(1.0 if chance >= single else min(1.0, chance / acc), abs=1e-3)
    found = departed(probs, candidates, accept_index, accept_token_num, single=single, acc=acc)
    assert found.double().mean().item() == pytest.approx(accepted - chance, abs=1e-3)
