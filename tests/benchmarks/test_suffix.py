"""The reference of suffix decoding that the GPU benchmark compares with, by examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.gpu.decoding import Batch, Corpora, Suffix
from benchmarks.gpu.suffix import LONGEST, SLOTS, Corpus, SuffixDrafts
from benchmarks.gpu.suffix_reference import find, length_bucket

CPU = torch.device("cpu")


def drafted(text: list[int], *responses: list[int], capacity: int = 1000) -> tuple[int, int, list[int]]:
    """Return the source, the length of the match and the tokens of a draft of at most 4."""
    corpus = Corpus.of([torch.tensor(response, dtype=torch.int32) for response in responses], capacity, CPU)
    return tuple(find(torch.tensor(text, dtype=torch.int32), corpus, 4))


def test_the_longest_own_match_is_continued_up_to_the_end_of_the_text():
    assert drafted([1, 2, 3, 9, 2, 3, 8, 1, 2, 3]) == (0, 3, [9, 2, 3, 8])
    assert drafted([1, 7, 1, 8, 1]) == (0, 1, [8, 1])
    assert drafted([5, 5, 5]) == (0, 2, [5])
    assert drafted([5]) == (0, 0, [])
    assert drafted([*range(40), *range(40)]) == (0, LONGEST, [0, 1, 2, 3])


def test_a_response_is_drafted_from_if_its_match_is_longer():
    assert drafted([1, 2, 3], [9, 1, 2, 3, 4, 5]) == (1, 3, [4, 5])
    assert drafted([1, 2, 3, 6, 1, 2, 3], [9, 1, 2, 3, 4, 5]) == (0, 3, [6, 1, 2, 3])
    assert drafted([3], [1, 2, 3, 4]) == (0, 0, [])  # two tokens are looked up


def test_candidates_vote():
    text = [1, 2]
    assert drafted(text, [1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 5, 7]) == (1, 2, [5, 7])
    # The longer match is sure of more tokens; what has the better score wins.
    text = [7, 1, 2]
    assert drafted(text, [1, 2, 5, 6], [1, 2, 5, 6], [7, 1, 2, 8, 9]) == (1, 3, [8, 9])
    assert drafted(text, [1, 2, 5, 6, 5, 6], [1, 2, 5, 6, 5, 6], [7, 1, 2, 8]) == (1, 2, [5, 6, 5, 6])


def test_a_slot_of_a_bucket_keeps_the_last_response():
    others = [[30 + number] for number in range(SLOTS - 1)]
    assert drafted([1, 2], [1, 2, 3], *others, [8, 8]) == (1, 2, [3])
    assert drafted([1, 2], [1, 2, 3], *others, [1, 2, 4]) == (1, 2, [4])


def test_responses_overwrite_the_oldest_ones_and_never_cross_the_ring_s_end():
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    assert drafted([1, 2], first, capacity=8) == (1, 2, [3, 4])
    assert drafted([1, 2], first, second, capacity=8) == (0, 0, [])
    assert drafted([5, 6], first, second, capacity=8) == (1, 2, [7, 8])
    assert drafted([11, 12], list(range(20)), capacity=8) == (0, 0, [])
    assert drafted([14, 15], list(range(20)), capacity=8) == (1, 2, [16, 17, 18, 19])


def test_confidence_is_what_was_accepted_of_what_was_observed():
    drafts = SuffixDrafts(Corpus(8, CPU), 1, 3, halved_every=4)
    text = torch.tensor([[1, 2, 9, 8, 7, 1, 2]], dtype=torch.int32)
    slots, lengths = torch.zeros(1, dtype=torch.int32), torch.tensor([7], dtype=torch.int32)
    out, confidence = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3)
    found = []
    for sampled in (0, 3, 1, 1):
        drafts.draft(slots, lengths, text, torch.tensor([sampled], dtype=torch.int32), out, confidence)
        assert out.tolist() == [[9, 8, 7]]
        found.append(confidence[0].tolist())
    counts = [[(0, 0)] * 3, [(1, 1), (1, 1), (0, 1)], [(1, 2), (1, 1), (0, 1)], [(0, 1), (0, 0), (0, 0)]]
    assert found == [pytest.approx([(a + 1) / (b + 2) for a, b in step]) for step in counts]


def test_lengths_of_matches_have_nine_buckets():
    ends = {1: 0, 2: 1, 6: 5, 7: 6, 10: 6, 11: 7, 20: 7, 21: 8, 24: 8}
    assert {length: length_bucket(length) for length in ends} == ends


def test_an_arm_with_another_draft_or_confidence_than_its_reference_is_found():
    tokens = np.random.default_rng(0).integers(0, 3, 500).astype(np.int32)
    corpora = Corpora.of([torch.from_numpy(tokens[start:][:50]) for start in range(0, 500, 50)], CPU)
    arm = Suffix("suffix", Batch(tokens, 3, 40, 4, 5, CPU), corpora)
    for _ in range(5):
        arm.advance()
        arm.draft()
    assert [arm.equals_reference(row) for row in range(3)] == [True] * 3
    arm.out[0, 1] += 1
    arm.confidence[2, 0] += 0.01
    assert [arm.equals_reference(row) for row in range(3)] == [False, True, False]
