"""The rate that the policy `batch` learns from its own steps, and that going by it makes the most of them."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug_batch.roofline import Roofline
from specplug_batch.trim import TRUST
from tests.policies.test_batch import chains, kept, levels, trimmer


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_rate_is_the_running_one(data):
    """Held to plain arithmetic over a few steps, also where rows change places."""
    horizon, saturation = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 8))
    policy, shuffled = (trimmer(saturation=saturation, horizon=horizon) for _ in range(2))
    roofline, tokens, cost = Roofline(saturation, 0.02), TRUST, TRUST
    for _ in range(data.draw(st.integers(1, 4))):
        confidences = [data.draw(st.lists(levels, min_size=1, max_size=3)) for _ in range(3)]
        draft = chains(*confidences)
        lengths = kept(policy, draft)
        order = data.draw(st.permutations(range(3)))
        moved = kept(shuffled, chains(*[confidences[row] for row in order]))
        if len({tuple(row) for row in confidences}) == 3:  # among equals the lower row comes first
            values = [x for row in draft.survival().tolist() for x in row if x]
            assert moved == [lengths[row] for row in order] or len(set(values)) < len(values)
        survival = draft.survival()
        expected = sum(float(survival[row, :count].sum()) for row, count in enumerate(lengths))
        tokens = tokens * (1 - 1 / horizon) + 1 + expected / 3
        cost = cost * (1 - 1 / horizon) + roofline.cost(3 + sum(lengths)) / roofline.cost(3)
        assert policy._sums[1].tolist() == pytest.approx([tokens, cost], rel=1e-5)
    assert policy._sums[[0, 2, 5]].tolist() == [[TRUST, TRUST]] * 3  # other batch sizes know nothing of it


def test_rows_in_another_order_learn_the_same_to_the_last_bit():
    generator = random.Random(0)
    batches = [[[generator.uniform(0.9, 1.0) for _ in range(60)] for _ in range(6)] for _ in range(30)]
    policies = [trimmer(saturation=200, horizon=1) for _ in range(2)]
    for batch in batches:
        found = kept(policies[0], chains(*batch))
        order = generator.sample(range(6), 6)
        assert kept(policies[1], chains(*[batch[row] for row in order])) == [found[row] for row in order]
        assert torch.equal(policies[0]._sums, policies[1]._sums)


def long_run(kinds: list[list[float]], batch_size: int, roofline: Roofline) -> tuple[float, float]:
    """Return the tokens per cost of equally frequent steps: of the best lengths, and of each step's best ratio."""
    options = [
        [(batch_size * (1 + sum(kind[:n])), roofline.cost(batch_size * (n + 1))) for n in range(len(kind) + 1)]
        for kind in kinds
    ]

    def rate(chosen) -> float:
        return sum(e for e, _ in chosen) / sum(c for _, c in chosen)

    greedy = [max(one, key=lambda step: step[0] / step[1]) for one in options]
    return max(rate(chosen) for chosen in itertools.product(*options)), rate(greedy)


@pytest.mark.parametrize("batch_size", [32, 64, 128, 256])
def test_in_the_long_run_it_makes_the_most_tokens_per_cost(batch_size):
    """Drafts that are good, middling and poor, in any order; the best choice for all is found by trying all."""
    kinds = [[0.97 ** (j + 1) for j in range(12)], [0.8 ** (j + 1) for j in range(8)], [0.35, 0.1, 0.02]]
    roofline = Roofline(256, 0.02)
    best, greedy = long_run(kinds, batch_size, roofline)
    policy = trimmer(batch_size=batch_size, margin=0.0, horizon=64)
    generator, tokens, cost = random.Random(1), 0.0, 0.0
    for step, kind in enumerate(kind for _ in range(300) for kind in generator.sample(kinds, 3)):
        confidences = [kind[0], *(b / a for a, b in itertools.pairwise(kind))]
        count = kept(policy, chains(confidences))[0]
        if step >= 300:
            tokens += batch_size * (1 + sum(kind[:count]))
            cost += roofline.cost(batch_size * (count + 1))
    assert tokens / cost > 0.985 * best
    assert tokens / cost >= roofline.plain_rate(batch_size)
    assert best >= greedy


def test_the_best_ratio_of_each_step_is_not_the_best_in_the_long_run():
    kinds = [[0.97 ** (j + 1) for j in range(12)], [0.8 ** (j + 1) for j in range(8)], [0.35, 0.1, 0.02]]
    best, greedy = long_run(kinds, 64, Roofline(256, 0.02))
    assert greedy < 0.99 * best
