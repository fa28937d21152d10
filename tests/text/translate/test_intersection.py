"""Tokens of the same bytes or the same role correspond one to one, and unknown ones to nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specplug.text.translate.tables import intersect, match_controls
from tests.text.translate.tools import PAIRS, vocabulary


@pytest.mark.parametrize("pair", PAIRS)
def test_it_is_one_to_one_and_of_the_same_bytes_or_role(pair):
    target, draft = map(vocabulary, pair)
    found = intersect(target, draft)
    assert found.to_draft.dtype == found.to_target.dtype == np.int32
    assert (len(found.to_draft), len(found.to_target)) == (len(target.pieces), len(draft.pieces))
    (shared,) = np.nonzero(found.to_draft >= 0)
    assert (found.to_target[found.to_draft[shared]] == shared).all()
    assert np.count_nonzero(found.to_target >= 0) == len(shared)
    for token, to in zip(shared.tolist(), found.to_draft[shared].tolist(), strict=True):
        assert target.pieces[token] == draft.pieces[to]
        assert (token in target.controls) == (to in draft.controls)
    same = {piece for piece in target.pieces if piece} & {piece for piece in draft.pieces if piece}
    assert len(same) == sum(bool(target.pieces[token]) for token in shared)
    for each, overlap in ((target, found.of_target), (draft, found.of_draft)):
        size = len({*filter(None, each.pieces)}) + len(each.controls)
        assert overlap == pytest.approx(100 * len(shared) / size)


def test_a_vocabulary_with_itself():
    for name, overlap in (("tiny", 100.0), ("tekken", 100 * 131071 / 131072)):  # all but <unk>
        found = intersect(vocabulary(name), vocabulary(name))
        assert found.of_target == found.of_draft == pytest.approx(overlap)
        kept = found.to_draft >= 0
        assert (found.to_draft[kept] == np.arange(len(kept))[kept]).all()


def test_models_with_more_logits_than_tokens():
    found = intersect(vocabulary("tiny"), vocabulary("spm1"), 2304, 32064)
    assert (found.to_draft.shape, found.to_target.shape) == ((2304,), (32064,))
    assert (found.to_draft[2048:] == -1).all()
    assert (found.to_target[32000:] == -1).all()


def test_a_letter_is_the_token_that_text_is_encoded_to():
    spm1, tiny = vocabulary("spm1"), vocabulary("tiny")
    found = intersect(spm1, tiny)
    (letter,) = tiny.encode("a")
    assert found.to_target[letter] == spm1.encode("a")[0] != spm1.byte_ids[ord("a")]
    assert found.to_draft[spm1.byte_ids[ord("a")]] == -1
    assert found.to_draft[spm1.byte_ids[0xE2]] == tiny.byte_ids[0xE2]


def test_the_first_of_several_equal_tokens_is_used():
    tiny = vocabulary("tiny")
    found = intersect(replace(tiny, pieces=(*tiny.pieces, tiny.pieces[500])), tiny)
    assert found.to_draft[[500, 2048]].tolist() == [500, -1]
    assert found.of_target == 100


def test_control_tokens_correspond_by_text_then_by_role_and_ends_to_the_end():
    spm1, tiny, byte_level, tekken = map(vocabulary, ("spm1", "tiny", "byte_level", "tekken"))
    assert match_controls(spm1, tekken).to_draft == {1: 1, 2: 2}
    assert match_controls(spm1, byte_level).to_draft == {1: 0}
    assert match_controls(tiny, byte_level).to_draft == {0: 2}
    ends = match_controls(replace(byte_level, eos_id=2), spm1)
    assert ends.to_draft == {0: 1, 2: 2}
    assert ends.to_target == {1: 0, 2: 2}
