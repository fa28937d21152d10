"""Ids are drawn from exactly the distribution that is stated, and routes are chosen by what was accepted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specplug_crosstok.acceptance import NUM_BUCKETS, NUM_LEVELS, KindAcceptance, bucket_of
from specplug_crosstok.drawing import GENERATION_BITS, Common, NextIds, choose, share_level, uniforms

VOCAB = 8
COMMON = [1, 2, 5, 7]
GRID = 4000


def common(confidence: Tensor | None = None) -> Common:
    is_used = torch.zeros(VOCAB, dtype=torch.bool)
    is_used[COMMON] = True
    draws_always = torch.full((NUM_LEVELS + 1, NUM_BUCKETS), 0.5)
    return Common(torch.tensor(COMMON), is_used, draws_always if confidence is None else confidence)


def chosen(
    logits: Tensor, *, restricted: bool = False, temperature: float = 0.0, confidence: Tensor | None = None
) -> NextIds:
    """Choose for equal rows [R, V], with random numbers that cover [0, 1) evenly."""
    count = len(logits)
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count if temperature else None
    return choose(
        common(confidence), torch.full((count,), restricted), torch.full((count,), temperature), logits, numbers
    )


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)).mul(1.5).expand(count, VOCAB)


@pytest.mark.parametrize("seed", range(4))
def test_a_greedy_row_takes_the_most_probable_id(seed):
    logits = rows(1, seed)
    for restricted, ids in ((False, range(VOCAB)), (True, COMMON)):
        found = chosen(logits, restricted=restricted)
        assert found.ids.tolist() == [list(ids)[int(logits[0, list(ids)].argmax())]]
        assert (found.is_common.tolist(), found.logits) == ([restricted], None)
        assert float(found.probabilities) == pytest.approx(float(logits[0, list(ids)].softmax(0).max()))


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("restricted", [False, True])
def test_draws_follow_the_stated_distribution(temperature, restricted):
    found = chosen(rows(GRID, 1), temperature=temperature, restricted=restricted)
    assert found.is_common.all()
    assert torch.equal(found.logits, rows(GRID, 1)[:, COMMON])
    stated = torch.softmax(found.logits[0] / temperature, 0)
    counts = torch.bincount(found.ids, minlength=VOCAB)[COMMON]
    assert counts.sum() == GRID
    torch.testing.assert_close(counts / GRID, stated, atol=2 / GRID, rtol=0)


def test_an_id_without_probability_is_not_drawn():
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[:, [0, 2]] = torch.tensor([5.0, 1.0])
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert choose(common(), torch.ones(2).bool(), torch.ones(2), logits, ends).ids.tolist() == [2, 2]


def test_each_row_has_its_own_number_and_temperature():
    logits, numbers = torch.zeros(5, VOCAB), torch.tensor([0.1, 0.3, 0.6, 0.9, 0.9]).double()
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    found = choose(common(), torch.zeros(5).bool(), temperature, logits, numbers)
    assert found.ids.tolist() == [*COMMON, 0], "a row without a temperature draws nothing"
    assert found.is_common.tolist() == [True] * 4 + [False]


@pytest.mark.parametrize(("drawn_rate", "text_rate"), [(0.7, 0.6), (0.6, 0.7), (0.6, 0.6)])
def test_a_row_draws_where_that_is_accepted_as_often_as_text(drawn_rate, text_rate):
    """Only the share's level and the bucket of the most probable id count."""
    logits = rows(1, 2)
    share = (logits[0] / 0.8).softmax(0)[COMMON].sum()
    level, bucket = int(share_level(share)), int(bucket_of(logits[0].softmax(0).max()))
    confidence = torch.full((NUM_LEVELS + 1, NUM_BUCKETS), float("nan"))
    confidence[level, bucket], confidence[-1, bucket] = drawn_rate, text_rate
    found = chosen(logits, temperature=0.8, confidence=confidence)
    assert (found.is_common.tolist(), found.levels.tolist()) == ([drawn_rate >= text_rate], [level])
    assert drawn_rate >= text_rate or found.ids.tolist() == [int(logits[0].argmax())]
    assert chosen(logits, temperature=0.8, confidence=confidence, restricted=True).is_common.all()


def test_levels_of_the_share():
    assert share_level(torch.tensor([0.0, 0.5, 0.51, 0.8, 0.9, 0.95, 0.96, 1.0])).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def numbers_of(seed: int, keys: list[tuple[int, int, int]], count: int) -> Tensor:
    """Return the numbers of drafts by slot, generation and length, [B, count]."""
    packed = [((slot << GENERATION_BITS | generation) << GENERATION_BITS) | length for slot, generation, length in keys]
    return uniforms(seed, torch.tensor(packed)[:, None], torch.arange(count))


KEYS = st.tuples(st.integers(0, 255), st.integers(0, 10**6), st.integers(0, 10**5))


@given(st.integers(0, 2**31), st.lists(KEYS, min_size=1, max_size=5, unique=True), st.integers(1, 9), st.randoms())
def test_numbers_belong_to_a_key_and_not_to_a_row(seed, keys, count, random):
    found = dict(zip(keys, numbers_of(seed, keys, count).tolist(), strict=True))
    moved = random.sample(keys, len(keys))
    assert numbers_of(seed, moved, count).tolist() == [found[key] for key in moved]
    assert numbers_of(seed, keys, count + 3)[:, :count].tolist() == list(found.values())
    assert all(0 <= number < 1 for row in found.values() for number in row)
    assert len({row[0] for row in found.values()}) == len(keys)


def test_each_part_of_a_key_and_the_seed_make_other_numbers():
    keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3)]
    numbers = torch.cat([numbers_of(seed, keys, 4) for seed in (0, 1)]).flatten()
    assert len(set(numbers.tolist())) == numbers.numel()


def test_numbers_are_spread_evenly():
    numbers = numbers_of(0, [(slot, 0, 40) for slot in range(2000)], 2).numpy()
    assert np.histogram(numbers[:, 0], 10, (0, 1))[0] == pytest.approx(200, abs=60)
    assert abs(np.corrcoef(numbers.T)[0, 1]) < 0.1


def test_buckets_are_narrower_towards_certainty():
    buckets = bucket_of(torch.linspace(0, 1, 100_001).double()).numpy()
    assert sorted(set(buckets.tolist())) == list(range(NUM_BUCKETS))
    assert (np.diff(buckets) >= 0).all()
    sizes = np.bincount(buckets)
    assert all(wide > narrow for wide, narrow in pairwise(sizes[:-1]))


def acceptance_of(num_kinds: int) -> KindAcceptance:
    return KindAcceptance(torch.device("cpu"), num_kinds)


def learn(acceptance: KindAcceptance, kinds: list[int], probabilities: list[float], accepted: int) -> None:
    """Learn from one draft whose tokens were tested up to the first that was rejected."""
    tested = min(accepted + 1, len(kinds))
    probability = torch.tensor([probabilities], dtype=torch.float64)
    acceptance.learn(torch.tensor([kinds]), probability, torch.tensor([tested]), torch.tensor([accepted]))


def confidence(acceptance: KindAcceptance, kind: int, probability: float) -> float:
    return float(acceptance.confidence(torch.tensor([kind]), torch.tensor([probability], dtype=torch.float64)))


def test_confidence_begins_with_the_models_own_and_moves_to_what_is_accepted():
    acceptance = acceptance_of(2)
    assert confidence(acceptance, 0, 0.6) == pytest.approx(0.6)
    random, seen = np.random.default_rng(0), []
    for count in range(1, 2001):
        learn(acceptance, [0], [0.6], int(random.random() < 0.2))
        seen.append(abs(confidence(acceptance, 0, 0.6) - 0.2))
        assert acceptance.counts()[0, 0] == count
    assert seen[-1] < 0.03 < seen[100] + 0.03 < seen[0]
    assert confidence(acceptance, 1, 0.6) == pytest.approx(0.6), "kinds are counted apart"
    assert confidence(acceptance, 0, 0.99) == pytest.approx(0.99), "and so are buckets"


def test_what_is_old_is_forgotten():
    acceptance = acceptance_of(1)
    kinds, probabilities = torch.zeros(100, 50).long(), torch.full((100, 50), 0.9).double()
    for accepted in (0, 0, 0, 50, 50, 50, 50, 50):
        acceptance.learn(kinds, probabilities, torch.full((100,), 50), torch.full((100,), accepted))
    assert confidence(acceptance, 0, 0.9) > 0.9


def test_a_draft_teaches_its_accepted_tokens_and_the_first_rejected():
    acceptance = acceptance_of(3)
    learn(acceptance, [0, 1, 1, 2], [0.1, 0.9, 0.9, 0.5], 2)
    assert acceptance.counts().tolist() == [[1, 1], [2, 1], [0, 0]]


def test_confidence_by_bucket_is_that_of_its_middle():
    acceptance = acceptance_of(2)
    learn(acceptance, [1] * 5, [0.7] * 5, 5)
    found = acceptance.by_bucket(slice(0, 2))
    assert found.shape == (2, NUM_BUCKETS)
    assert bucket_of(found[0]).tolist() == list(range(NUM_BUCKETS))
    changed = (found[0] != found[1]).nonzero()[:, 0]
    assert changed.tolist() == bucket_of(torch.tensor([0.7])).tolist()
    assert found[1][changed] > found[0][changed]
    joined = acceptance.by_bucket(slice(0, 2), joined=True)
    assert torch.equal(joined[0], found[1])
