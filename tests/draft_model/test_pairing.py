"""Two tokenizers are the same if they give texts the same ids; otherwise contexts are translated, by text."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import AutoTokenizer

from specplug.draft_model.pairing import TokenizerPair
from specplug.errors import SettingsError
from specplug.text.translate.tables import intersect
from specplug.tools.demo import model_path
from tests.text.translate.tools import ids_of, library

SIZE, OTHER = 2048, 1024


def tokenizer(name: str) -> object:
    return AutoTokenizer.from_pretrained(str(model_path(name)))


def shared(found: np.ndarray) -> list[int]:
    return np.flatnonzero(found >= 0).tolist()


def test_one_tokenizer_needs_no_translation_whichever_library_wraps_it():
    for target in (tokenizer("tiny"), library("tiny").library):
        pair = TokenizerPair.of(target, tokenizer("tiny-draft"), SIZE, SIZE)
        assert pair.is_same
        assert pair.intersection.to_draft.tolist() == pair.intersection.to_target.tolist() == list(range(SIZE))
        assert (pair.intersection.of_target, pair.intersection.of_draft) == (100.0, 100.0)


@pytest.mark.parametrize(("target_vocab", "draft_vocab"), [(2304, 2176), (2048, 2304), (2000, 2048)])
def test_padding_of_either_model_is_not_shared(target_vocab, draft_vocab):
    found = TokenizerPair.of(tokenizer("tiny"), tokenizer("tiny-draft"), target_vocab, draft_vocab)
    assert found.is_same
    common = list(range(min(SIZE, target_vocab)))
    assert len(found.intersection.to_draft) >= target_vocab
    assert len(found.intersection.to_target) == draft_vocab
    assert shared(found.intersection.to_draft) == shared(found.intersection.to_target) == common
    assert found.intersection.to_target[common].tolist() == common


def test_a_draft_model_with_fewer_logits_than_the_tokenizer_has_ids_is_translated_for():
    pair = TokenizerPair.of(tokenizer("tiny"), tokenizer("tiny-draft"), SIZE, SIZE - 1)
    assert not pair.is_same


def test_ids_of_one_tokenizer_are_translated_as_they_are():
    table = TokenizerPair.of(tokenizer("tiny"), tokenizer("tiny-draft"), 2304, 2100).table()
    assert [ids_of(table, token) for token in (0, 5, 2047)] == [[0], [5], [2047]]
    assert set(table.counts[2048:].tolist()) == {-1}


def test_two_tokenizers_are_translated_between():
    target, draft = tokenizer("tiny"), tokenizer("tiny-draft-other")
    pair = TokenizerPair.of(target, draft, 2304, 1100)
    assert pair.vocabularies is not None
    expected = intersect(*pair.vocabularies, 2304, 1100)
    assert np.array_equal(pair.intersection.to_target, expected.to_target)
    assert len(pair.intersection.to_draft) == 2304
    assert 0 < len(shared(pair.intersection.to_target)) < OTHER
    text, table = "def añadir(x):\n    return x", pair.table()
    ids = [each for token in target.encode(text, add_special_tokens=False) for each in ids_of(table, token)]
    assert draft.decode(ids) == text


def test_a_server_without_a_tokenizer_is_told_why():
    with pytest.raises(SettingsError, match=r"target's tokenizer is not known; expected .*--skip-tokenizer-init"):
        TokenizerPair.of(None, tokenizer("tiny-draft"), SIZE, SIZE)


def test_a_tokenizer_that_alters_text_is_translated_for():
    lower = Tokenizer.from_str(library("byte_level").to_str())
    lower.normalizer = normalizers.Lowercase()
    for pair in ((lower, tokenizer("tiny")), (tokenizer("tiny"), lower)):
        assert TokenizerPair.of(*pair, SIZE, SIZE).vocabularies is not None


def test_tokenizers_without_a_common_token_are_refused():
    (first, second) = (
        Tokenizer(models.BPE({text: at for at, text in enumerate(of)}, [])) for of in ("天地", "는고양이")
    )
    with pytest.raises(SettingsError, match=r"no token in common.*Choose"):
        TokenizerPair.of(first, second, SIZE, SIZE)
