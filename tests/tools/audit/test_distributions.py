"""Next-token distributions and the stated power of their tests."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from specplug.testing.equality import GStatistic
from specplug.tools.audit.sampled import (
    OTHER,
    Sample,
    compare_exact,
    compare_sample,
    detectable_share,
    from_logprobs,
    next_tokens,
)

PROBS = {0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}
LOGPROBS = {token: math.log(prob) for token, prob in PROBS.items()}


def drawn(draw: random.Random, size: int, probs: dict[int, float] = PROBS) -> Counter[int]:
    return Counter(draw.choices([*probs], [*probs.values()], k=size))


def test_next_tokens_by_context():
    counts = next_tokens([(1, 2), (1, 3), (4,)], least=2)
    assert counts == {(): Counter({1: 2, 4: 1}), (1,): Counter({2: 1, 3: 1})}


def test_a_distribution_by_log_probabilities():
    partial = {token: LOGPROBS[token] for token in (0, 1)}
    assert from_logprobs(partial, 1.0, 0) == pytest.approx({0: 0.5, 1: 0.3, OTHER: 0.2})
    hot = from_logprobs(LOGPROBS, 2.0, 2)
    weights = [math.sqrt(0.5), math.sqrt(0.3)]
    assert hot == pytest.approx({0: weights[0] / sum(weights), 1: weights[1] / sum(weights)})
    with pytest.raises(AssertionError):
        from_logprobs(LOGPROBS, 2.0, 0)


def test_a_token_outside_top_k_convicts():
    assert compare_exact(Counter({0: 90, 1: 9, 3: 1}), from_logprobs(LOGPROBS, 1.5, 2)).p == 0


@pytest.mark.parametrize("kind", ["exact", "sample"])
def test_p_values_are_uniform_for_the_true_distribution(kind):
    draw = random.Random(1)
    values = []
    for _ in range(400):
        counts = drawn(draw, 300)
        found = compare_exact(counts, PROBS) if kind == "exact" else compare_sample(counts, drawn(draw, 300))
        values.append(found.p)
    assert 0.02 < np.mean(np.array(values) < 0.05) < 0.09
    assert 0.4 < np.mean(values) < 0.6


@pytest.mark.parametrize("power", [0.5, 0.9])
def test_the_stated_power_is_the_power(power):
    """A verifier that forces the likeliest token on the stated share of the draws is found as often as stated."""
    draw, alpha = random.Random(2), 1e-3
    first, later = Sample(200, PROBS, had_drafts=False), Sample(200, PROBS, had_drafts=True)
    kinds = [[first, later, later, later], [first, later, later]]
    share = detectable_share(kinds, alpha, power)
    assert share is not None
    forced = {token: (1 - share) * prob + share * (token == 0) for token, prob in PROBS.items()}

    def is_found(kind: list[Sample]) -> bool:
        samples = (drawn(draw, 200, forced if tested.had_drafts else PROBS) for tested in kind)
        return sum((compare_exact(sample, PROBS) for sample in samples), GStatistic()).p < alpha

    found = sum(any(is_found(kind) for kind in kinds) for _ in range(400))
    assert power - 0.08 < found / 400 < power + 0.08


def test_certain_texts_prove_nothing():
    assert detectable_share([[Sample(500, {0: 1.0}, had_drafts=True)]], 1e-3, 0.9) is None
    assert detectable_share([[Sample(500, PROBS, had_drafts=False)]], 1e-3, 0.9) is None
    assert detectable_share([], 1e-3, 0.9) is None
