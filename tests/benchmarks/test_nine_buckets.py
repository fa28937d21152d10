"""The peer of confidences drafts what `ngram` drafts, and counts by the match that a draft continues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.nine_buckets import LONGEST_MATCH, bucket, drafter, longest_match
from specplug.cli.replay import SHIPPED
from specplug.replay import Setup, load_tokenizer, read_traces, replay, tokenize
from specplug.replay.external import replay_external

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@given(TEXTS, TEXTS, st.integers(0, 2))
def test_the_match_is_the_longest_end_of_the_context_before_the_draft(text, context, following):
    lengths = [0]
    for place in (place for place in range(1, len(text)) if text[place] == following):
        most = min(place, len(context), LONGEST_MATCH)
        lengths += [n for n in range(1, most + 1) if text[place - n : place] == context[-n:]]
    found = longest_match(np.array(text, np.int32), np.array(context, np.int32), following)
    assert found == max(lengths)


def test_buckets_are_those_of_the_branch():
    lengths = (0, 1, 2, 6, 7, 10, 11, 20, 21, 24)
    assert [bucket(length) for length in lengths] == [0, 1, 2, 6, 7, 7, 8, 8, 9, 9]


def test_both_judge_the_same_drafts():
    items = tokenize(read_traces(SHIPPED)["structured"], load_tokenizer("tiny"))[:4]
    ours, counted = replay(items, Setup("ngram", "fixed", gamma=8)), replay_external(items, drafter, gamma=8)
    assert counted.counts == ours.counts
    assert (counted.calibration.count, counted.survival.count) == (ours.calibration.count, ours.survival.count)
    assert counted.calibration.brier != pytest.approx(ours.calibration.brier)
