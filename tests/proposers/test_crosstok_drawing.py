"""Ids are drawn from exactly the distribution that is stated, and routes are chosen by what was accepted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specplug_crosstok.acceptance import NUM_BUCKETS, Acceptance, _buckets, bucket_of
from specplug_crosstok.drawing import NUM_LEVELS, Common, Drawing, Drawn, key_of, share_level, uniforms

VOCAB = 8
COMMON = [1, 2, 5, 7]
GRID = 4000


def common(confidence: Tensor | None = None) -> Common:
    is_used = torch.zeros(VOCAB, dtype=torch.bool)
    is_used[COMMON] = True
    draws_always = torch.full((NUM_LEVELS + 1, NUM_BUCKETS), 0.5)
    return Common(torch.tensor(COMMON), is_used, draws_always if confidence is None else confidence)


def chosen(
    logits: Tensor, *, restricted: bool = False, heat: float = 0.0, confidence: Tensor | None = None
) -> tuple[Tensor, Drawn]:
    """Choose for equal rows [R, V] at one step, with random numbers that cover [0, 1) evenly."""
    count = len(logits)
    numbers = ((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None] if heat else None
    drawing = Drawing(common(confidence), torch.full((count,), restricted), torch.full((count,), heat), numbers)
    ids = drawing.choose(0, logits)
    return ids, drawing.result()


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)).mul(1.5).expand(count, VOCAB)


@pytest.mark.parametrize("seed", range(4))
def test_a_greedy_row_takes_the_most_probable_id(seed):
    logits = rows(1, seed)
    ids, drawn = chosen(logits)
    assert ids.tolist() == [int(logits[0].argmax())]
    assert (drawn.is_common.tolist(), drawn.logits) == ([[False]], None)
    assert drawn.probabilities[0, 0] == pytest.approx(float(logits[0].softmax(0).max()))
    ids, drawn = chosen(logits, restricted=True)
    assert ids.tolist() == [COMMON[int(logits[0, COMMON].argmax())]]
    assert (drawn.is_common.tolist(), drawn.logits) == ([[True]], None)
    assert drawn.probabilities[0, 0] == pytest.approx(float(logits[0, COMMON].softmax(0).max()))


@pytest.mark.parametrize("heat", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("restricted", [False, True])
def test_draws_follow_the_stated_distribution(heat, restricted):
    ids, drawn = chosen(rows(GRID, 1), heat=heat, restricted=restricted)
    assert drawn.is_common.all()
    assert drawn.logits.shape == (GRID, 1, len(COMMON))
    assert torch.equal(drawn.logits[:, 0], rows(GRID, 1)[:, COMMON])
    stated = torch.softmax(drawn.logits[0, 0] / heat, 0)
    counts = torch.bincount(ids, minlength=VOCAB)[COMMON]
    assert counts.sum() == GRID
    torch.testing.assert_close(counts / GRID, stated, atol=2 / GRID, rtol=0)


def test_an_id_without_probability_is_not_drawn():
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[:, [0, 2]] = torch.tensor([5.0, 1.0])
    ends = torch.tensor([[0.0], [1 - 2**-53]], dtype=torch.float64)
    drawing = Drawing(common(), torch.ones(2).bool(), torch.ones(2), ends)
    assert drawing.choose(0, logits).tolist() == [2, 2]


def test_each_step_has_its_own_numbers_and_each_row_its_own_temperature():
    logits = torch.zeros(2, VOCAB)
    numbers = torch.tensor([[0.1, 0.3, 0.6, 0.9], [0.9, 0.6, 0.3, 0.1]]).double()
    drawing = Drawing(common(), torch.zeros(2).bool(), torch.tensor([1.0, 0.0]), numbers)
    ids = [drawing.choose(step, logits).tolist() for step in range(4)]
    assert [first for first, _ in ids] == COMMON
    assert {second for _, second in ids} == {0}, "a row without a temperature draws nothing"
    assert drawing.result().is_common.tolist() == [[True] * 4, [False] * 4]


@pytest.mark.parametrize(("drawn_rate", "text_rate"), [(0.7, 0.6), (0.6, 0.7), (0.6, 0.6)])
def test_a_row_draws_where_that_is_accepted_as_often_as_text(drawn_rate, text_rate):
    """Only the share's level and the bucket of the most probable id count."""
    logits = rows(1, 2)
    share = (logits[0] / 0.8).softmax(0)[COMMON].sum()
    level, bucket = int(share_level(share)), int(bucket_of(logits[0].softmax(0).max()))
    confidence = torch.full((NUM_LEVELS + 1, NUM_BUCKETS), float("nan"))
    confidence[level, bucket], confidence[-1, bucket] = drawn_rate, text_rate
    ids, drawn = chosen(logits, heat=0.8, confidence=confidence)
    assert drawn.is_common.tolist() == [[drawn_rate >= text_rate]]
    assert drawn.levels.tolist() == [[level]]
    assert drawn_rate >= text_rate or ids.tolist() == [int(logits[0].argmax())]
    assert chosen(logits, heat=0.8, confidence=confidence, restricted=True)[1].is_common.all()


def test_levels_of_the_share():
    assert share_level(torch.tensor([0.0, 0.5, 0.51, 0.8, 0.9, 0.95, 0.96, 1.0])).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def numbers_of(seed: int, keys: list[tuple[int, int, int]], count: int) -> Tensor:
    """Return the numbers of drafts by slot, generation and length, [B, count]."""
    return uniforms(seed, torch.tensor([key_of(*key) for key in keys])[:, None], torch.arange(count))


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


PROBABILITIES = st.lists(
    st.one_of(st.floats(0, 1), st.floats(0, 12).map(lambda doubt: 1 - 2**-doubt)), min_size=1, max_size=50
)


@given(PROBABILITIES)
def test_buckets_are_the_same_for_tensors_and_arrays(probabilities):
    array = np.array(probabilities)
    assert bucket_of(torch.from_numpy(array)).tolist() == _buckets(array).tolist()
    single = bucket_of(torch.from_numpy(array).float()).tolist()
    around = [_buckets(np.clip(array.astype(np.float32) + side, 0, 1)).tolist() for side in (-1e-6, 1e-6)]
    assert all(low <= found <= high for low, found, high in zip(around[0], single, around[1], strict=True))


def test_buckets_are_narrower_towards_certainty():
    steps = np.linspace(0, 1, 100_001)
    buckets = _buckets(steps)
    assert sorted(set(buckets.tolist())) == list(range(NUM_BUCKETS))
    assert (np.diff(buckets) >= 0).all()
    sizes = np.bincount(buckets)
    assert all(wide > narrow for wide, narrow in pairwise(sizes[:-1]))


def test_confidence_begins_with_the_models_own_and_moves_to_what_is_accepted():
    acceptance, probability = Acceptance(2), np.array([0.6])
    kinds = np.zeros(1, np.int32)
    assert acceptance.confidence(kinds, probability).tolist() == [0.6]
    random, seen = np.random.default_rng(0), []
    for count in range(1, 2001):
        acceptance.learn(kinds, probability, int(random.random() < 0.2))
        seen.append(abs(float(acceptance.confidence(kinds, probability)[0]) - 0.2))
        assert acceptance.counts()[0, 0] == count
    assert seen[-1] < 0.03 < seen[100] + 0.03 < seen[0]
    tested, accepted = acceptance.counts()[0]
    assert accepted / tested == pytest.approx(0.2, abs=0.03)
    assert acceptance.confidence(np.ones(1, np.int32), probability).tolist() == [0.6], "kinds are counted apart"
    assert acceptance.confidence(kinds, np.array([0.99])).tolist() == [0.99], "and so are buckets"


def test_what_is_old_is_forgotten():
    acceptance, kinds, probability = Acceptance(1), np.zeros(1, np.int32), np.array([0.9])
    for accepted in [0] * 5000 + [1] * 15000:
        acceptance.learn(kinds, probability, accepted)
    assert acceptance.confidence(kinds, probability)[0] > 0.95
    assert acceptance.counts()[0, 0] <= 4096


def test_a_draft_teaches_its_accepted_tokens_and_the_first_rejected():
    acceptance = Acceptance(3)
    acceptance.learn(np.array([0, 1, 1, 2], np.int32), np.array([0.1, 0.9, 0.9, 0.5]), 2)
    assert acceptance.counts().tolist() == [[1, 1], [2, 1], [1, 0]]


def test_confidence_by_bucket_is_that_of_its_middle():
    acceptance = Acceptance(2)
    acceptance.learn(np.ones(5, np.int32), np.full(5, 0.7), 5)
    found = acceptance.by_bucket(slice(0, 2))
    assert found.shape == (2, NUM_BUCKETS)
    assert _buckets(found[0]).tolist() == list(range(NUM_BUCKETS))
    changed = np.flatnonzero(found[0] != found[1])
    assert changed.tolist() == _buckets(np.array([0.7])).tolist()
    assert found[1][changed] > found[0][changed]
