"""The stand-in for verification by sampling against exact distributions."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sgl_kernel.sampling import tree_speculative_sampling_target_only

from specplug_sglang.verification.lossy import departed
from tests.engines.sglang.forests import children, linked, outputs

VOCAB = 4


def distribution_of(
    parents: list[int], tokens: list[int], probs: torch.Tensor, depth: int
) -> dict[tuple[int, ...], float]:
    """Return the distribution of verification's output, exactly, over a grid of its random numbers."""
    made = linked([parents])
    del made["positions"]
    n, distribution = len(tokens), {}
    inner = [node for node in range(n) if children(parents, node)]
    grid = [(number + 0.5) / GRID for number in range(GRID)]
    finals = [(number + 0.5) / FINAL for number in range(FINAL)]
    for coins in itertools.product(grid, repeat=len(inner)):
        uniform = torch.zeros(1, n)
        uniform[0, inner] = torch.tensor(coins)
        for final in finals:
            out = outputs(1, n, depth)
            tree_speculative_sampling_target_only(
                **out,
                **made,
                candidates=torch.tensor([tokens]),
                uniform_samples=uniform,
                uniform_samples_for_final_sampling=torch.tensor([final]),
                target_probs=probs[None],
                draft_probs=torch.zeros_like(probs[None]),
                threshold_single=1.0,
                threshold_acc=1.0,
                deterministic=True,
            )
            kept = int(out["accept_token_num"][0]) + 1
            emitted = tuple(out["predicts"][out["accept_index"][0, :kept].long()].tolist())
            distribution[emitted] = distribution.get(emitted, 0.0) + 1 / len(grid) ** len(inner) / len(finals)
    return distribution


GRID, FINAL = 4, 12  # probabilities are quarters; what is left of them, any of 1 to 4, divides twelfths

QUARTERS = [weights for weights in itertools.product(range(5), repeat=3) if sum(weights) == 4]


@given(
    st.sampled_from([[-1, 0], [-1, 0, 0], [-1, 0, 1], [-1, 0, 0, 2], [-1, 0, 0, -1]]),
    st.data(),
)
def test_sampled_verification_keeps_the_distribution(parents, data):
    """The probability of each first token, and of each second one given it, is the target's own."""
    n = len(parents)
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    probs = torch.tensor(data.draw(st.lists(st.sampled_from(QUARTERS), min_size=n, max_size=n))) / 4
    distribution = distribution_of(parents, tokens, probs, depth=n)
    for token in range(3):
        chance = sum(weight for emitted, weight in distribution.items() if emitted[0] == token)
        assert chance == pytest.approx(float(probs[0, token]))
    for child in children(parents, 0):
        after = [
            (emitted, weight) for emitted, weight in distribution.items() if emitted[0] == tokens[child] and emitted[1:]
        ]
        first = next(node for node in children(parents, 0) if tokens[node] == tokens[child])
        total = sum(weight for _, weight in after)
        assert total == pytest.approx(float(probs[0, tokens[child]]))
        for token in range(3):
            chance = sum(weight for emitted, weight in after if emitted[1] == token)
            assert chance == pytest.approx(total * float(probs[first, token]))


@pytest.mark.parametrize(("single", "acc"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.5), (0.3, 0.5)])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.4, 0.8, 1.0])
def test_the_departure_of_lossy_acceptance_is_how_much_more_often_a_draft_is_accepted(single, acc, chance):
    """One draft token at every number of a fine grid, by the rule that SGLang's options state."""
    rows = 1000
    coins = (torch.arange(rows) + 0.5) / rows
    made, out = linked([[-1, 0]] * rows), outputs(rows, 2, 2)
    del made["positions"]
    probs = torch.tensor([1 - chance, chance]).expand(rows, 2, 2)
    candidates = torch.tensor([[0, 1]]).expand(rows, 2)
    tree_speculative_sampling_target_only(
        **out,
        **made,
        candidates=candidates,
        uniform_samples=torch.stack([coins, coins], 1),
        uniform_samples_for_final_sampling=torch.full((rows,), 0.5),
        target_probs=probs,
        draft_probs=torch.zeros_like(probs),
        threshold_single=single,
        threshold_acc=acc,
        deterministic=True,
    )
    accepted = out["accept_token_num"].double().mean().item()
    assert accepted == pytest.approx(1.0 if chance >= single else min(1.0, chance / acc), abs=1e-3)
    found = departed(probs, candidates, out["accept_index"], out["accept_token_num"], single=single, acc=acc)
    assert found.double().mean().item() == pytest.approx(accepted - chance, abs=1e-3)
