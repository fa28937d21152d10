"""The verifier's numbers: right bits, uniform, independent, and the same however a request is scheduled."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specplug.verify.random import uniforms

int64 = st.integers(-(2**63), 2**63 - 1)
ONE = torch.ones(1, dtype=torch.int64)


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


@settings(max_examples=100, deadline=None)
@given(int64, st.integers(0, 2**40))
def test_bits_equal_arithmetic_on_python_integers(seed, position):
    found = uniforms(torch.tensor([seed]), torch.tensor([position]), 2)
    assert found.accept[0].tolist() == [numbers(seed, position + j, 0) for j in range(2)]
    assert found.draw[0].tolist() == [numbers(seed, position + j, 1) for j in range(3)]


def test_known_values():
    """Fixed for good: a change would alter the output of every seeded request."""
    found = uniforms(torch.tensor([0, 42]), torch.tensor([0, 7]), 1)
    assert found.accept[:, 0].tolist() == [numbers(0, 0, 0), numbers(42, 7, 0)]
    assert found.accept[0, 0].item() == 0.28176129772258496


def test_a_number_depends_on_seed_and_position_only():
    """A request gets the same random numbers for any division into steps, draft length and batch."""
    whole = uniforms(5 * ONE, 100 * ONE, 8)
    later = uniforms(torch.tensor([9, 5]), torch.tensor([0, 103]), 3)
    assert torch.equal(later.accept[1], whole.accept[0, 3:6])
    assert torch.equal(later.draw[1], whole.draw[0, 3:7])


def table(seeds, positions, stream):
    """[seeds, positions] numbers for seeds 0.. and positions 0.. ."""
    found = uniforms(torch.arange(seeds), torch.zeros(seeds, dtype=torch.int64), positions)
    return (found.accept if stream == "accept" else found.draw[:, :positions]).numpy()


def test_uniform_over_positions_and_over_seeds():
    for stream in ("accept", "draw"):
        long, wide = table(4, 20_000, stream), table(20_000, 4, stream)
        for sample in (*long, *wide.T):
            assert stats.kstest(sample, "uniform").pvalue > 1e-4


def pairs_pvalue(first, second):
    """Chi-squared over a 16 x 16 grid."""
    counts, _, _ = np.histogram2d(first.ravel(), second.ravel(), bins=16, range=[[0, 1], [0, 1]])
    return stats.chisquare(counts.ravel()).pvalue


def test_neighbours_are_independent():
    accept, draw = table(200, 200, "accept"), table(200, 200, "draw")
    assert pairs_pvalue(accept, draw) > 1e-4, "streams"
    assert pairs_pvalue(accept[:, 1:], accept[:, :-1]) > 1e-4, "adjacent positions"
    assert pairs_pvalue(accept[1:], accept[:-1]) > 1e-4, "adjacent seeds"
    assert pairs_pvalue(accept[1:, :-1], accept[:-1, 1:]) > 1e-4, "seed + 1 against position + 1"
    assert pairs_pvalue(draw[:, :-1], accept[:, 1:]) > 1e-4, "a draw and the next acceptance"


def test_lowest_bits_are_uniform():
    bits = (table(100, 400, "draw") * 2**53).astype(np.int64) & 255
    assert stats.chisquare(np.bincount(bits.ravel(), minlength=256)).pvalue > 1e-4


def test_no_two_uses_share_a_number():
    """40 000 draws of 53 bits collide with probability 1e-7."""
    both = np.concatenate([table(100, 200, "accept").ravel(), table(100, 200, "draw").ravel()])
    assert len(np.unique(both)) == len(both)
