"""Recording of trajectories, held to replays and to plain references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.recording import LEAST, match_buckets, record
from benchmarks.simulate.trajectories import Trajectories
from specplug.tools.replay.engine import Setup
from tests.benchmarks.simulate.tools import random_trajectories
from tests.tools.replay.tools import ITEMS, VOCAB, Planted, item, registry


def longest_match(text: list[int]) -> int:
    """Return the length of the longest end of a text that occurred earlier in it, by trying all places."""
    n = len(text)
    lengths = [next((k for k in range(stop) if text[stop - 1 - k] != text[n - 1 - k]), stop) for stop in range(1, n)]
    return max(lengths, default=0)


@given(st.lists(st.integers(0, 2), max_size=60))
@settings(max_examples=100)
def test_buckets_are_those_of_the_longest_match(text):
    found = match_buckets(np.array(text, np.int32))
    lengths = [longest_match(text[:stop]) for stop in range(len(text) + 1)]
    assert found.tolist() == [sum(length >= least for least in LEAST) for length in lengths]


@given(ITEMS, st.integers(1, 3))
@settings(max_examples=25)
def test_the_real_proposer_drafts_at_every_position(items, in_flight):
    """A plain lookup drafts by the text alone, so the positions can be checked one by one."""

    def follow(text, limit):
        stop = len(text) - 1
        found = [place for place in range(stop) if text[place] == text[stop]]
        return text[found[-1] + 1 :][:limit] if found else []

    def drafts(batch, row, limit):
        return follow(batch.tokens[int(batch.rows[row]), : int(batch.lengths[row])].tolist(), limit)

    plugins = registry(lambda context: Planted(drafts), needs_host=True, inline=True)
    found = record(items, Setup("planted", gamma=5), in_flight=in_flight, vocab_size=VOCAB, registry=plugins)
    entry = 0
    for request, each in enumerate(items):
        output = each.output.tolist()
        assert found.starts[request] == entry
        assert (found.prompts[request], found.outputs[request]) == (each.prompt.size, len(output))
        for place in range(1, len(output)):
            draft, rest = follow([*each.prompt.tolist(), *output[:place]], 5), output[place:]
            right = next((k for k, token in enumerate(draft) if k >= len(rest) or token != rest[k]), len(draft))
            assert (found.lengths[entry], found.accepted[entry]) == (len(draft), right)
            assert found.confidence[entry].tolist() == [0.5] * len(draft) + [0.0] * (5 - len(draft))
            assert (found.source[entry] >= 0).tolist() == [k < len(draft) for k in range(5)]
            entry += 1
    assert entry == found.lengths.size


def test_an_item_of_one_token_has_no_position():
    found = record([item([1, 2], []), item([1], [2])], Setup("ngram-reference", gamma=3), vocab_size=VOCAB)
    assert found.outputs.tolist() == [1, 2]
    assert found.starts.tolist() == [0, 0]
    assert found.lengths.size == 1


def test_drafts_are_cut_to_the_draft_length():
    trajectories = random_trajectories()
    entries = np.arange(trajectories.lengths.size)
    found = trajectories.drafts(entries, 3)
    assert found.lengths.tolist() == np.minimum(trajectories.lengths, 3).tolist()
    assert found.accepted.tolist() == np.minimum(trajectories.accepted, 3).tolist()
    assert found.confidence.shape == found.source.shape == (entries.size, 3)


@given(st.integers(0, 1000), st.integers(0, 8))
@settings(max_examples=20)
def test_mean_acceptance_is_that_of_walking_each_output(seed, draft_length):
    trajectories = random_trajectories(seed)
    steps = 0
    for start, output in zip(trajectories.starts, trajectories.outputs, strict=True):
        place = 1
        while place < output:
            place += min(int(trajectories.accepted[start + place - 1]), draft_length) + 1
            steps += 1
    expected = (trajectories.outputs - 1).sum() / max(1, steps)
    assert trajectories.mean_acceptance(draft_length) == pytest.approx(expected)


def test_a_file_keeps_everything(tmp_path):
    trajectories, path = random_trajectories(), tmp_path / "drafts.npz"
    trajectories.save(path)
    found = Trajectories.load(path)
    for name in Trajectories.__slots__:
        assert getattr(found, name).tolist() == getattr(trajectories, name).tolist()
