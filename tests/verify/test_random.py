"""The verifier's numbers: right bits, uniform, independent, and the same however a request is scheduled."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specplug.verify.random import uniforms

int64 = st.integers(-(2**63), 2**63 - 1)


def splitmix(value):
    """SplitMix64's finaliser in Python's unbounded integers."""
    mask = 2**64 - 1
    value &= mask
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
    return value ^ value >> 31


def numbers(seed, position, stream):
    gamma = 0x9E3779B97F4A7C15
    return (splitmix(splitmix(seed + gamma) + (2 * position + stream) * gamma) >> 11) / 2**53


@settings(max_examples=50)
@given(st.lists(st.tuples(int64, st.integers(0, 2**40)), min_size=1, max_size=3), st.integers(0, 4))
def test_bits_equal_arithmetic_on_python_integers(rows, length):
    """So a request's numbers depend on its seed and the position, and not on steps, draft lengths and batches."""
    found = uniforms(*map(torch.tensor, zip(*rows, strict=True)), length)
    assert found.accept.tolist() == [[numbers(seed, at + j, 0) for j in range(length)] for seed, at in rows]
    assert found.draw.tolist() == [[numbers(seed, at + j, 1) for j in range(length + 1)] for seed, at in rows]


def test_a_known_value():
    """Fixed for good: a change would alter the output of every seeded request."""
    assert numbers(0, 0, 0) == 0.28176129772258496


def table(seeds, positions, stream):
    """[seeds, positions] numbers for seeds 0.. and positions 0.. ."""
    found = uniforms(torch.arange(seeds), torch.zeros(seeds, dtype=torch.int64), positions)
    return (found.accept if stream == "accept" else found.draw[:, :positions]).numpy()


def pairs_pvalue(first, second):
    """Chi-squared over a 16 x 16 grid."""
    counts, _, _ = np.histogram2d(first.ravel(), second.ravel(), bins=16, range=[[0, 1], [0, 1]])
    return stats.chisquare(counts.ravel()).pvalue


def test_neighbours_are_uniform_and_independent():
    accept, draw = table(200, 200, "accept"), table(200, 200, "draw")
    assert pairs_pvalue(accept, draw) > 1e-4, "streams"
    assert pairs_pvalue(accept[:, 1:], accept[:, :-1]) > 1e-4, "adjacent positions"
    assert pairs_pvalue(accept[1:], accept[:-1]) > 1e-4, "adjacent seeds"
    assert pairs_pvalue(accept[1:, :-1], accept[:-1, 1:]) > 1e-4, "seed + 1 against position + 1"
    assert pairs_pvalue(draw[:, :-1], accept[:, 1:]) > 1e-4, "a draw and the next acceptance"
