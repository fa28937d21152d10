"""A tokenizer's fingerprint depends on its behaviour, not on its wrapper."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from specplug.errors import SettingsError
from specplug.text.fingerprint import encoder, fingerprint, fingerprint_texts
from specplug.text.tokenizers import load_tokenizer, wrap
from specplug.tools.demo import model_path

TINY = "e802eb4b4366e4eeb25718c460bb872e"
"""Of the shipped model, in every engine's environment.  Stores on disk hold such digests: they must not change."""

TEKKEN = "3c948660c8f7200cf9c72a58333ef051"


def read(name: str = "tiny") -> Tokenizer:
    return Tokenizer.from_file(str(model_path(name) / "tokenizer.json"))


def test_it_is_what_it_was():
    assert fingerprint(read(), "tiny") == ("tiny", TINY, 2048)


def test_another_tokenizer_has_another():
    assert fingerprint(read("tiny-draft-other")).digest != TINY
    assert fingerprint(read("tiny-draft")).digest == TINY  # a smaller model, the same tokenizer


def test_wrappers_do_not_change_it():
    transformers = pytest.importorskip("transformers")
    found = transformers.AutoTokenizer.from_pretrained(model_path())
    assert fingerprint(found)[1:] == fingerprint(copy.deepcopy(found))[1:] == (TINY, 2048)


def test_special_tokens_that_somebody_adds_do_not_change_it():
    found = read()
    found.add_special_tokens(["<|mine|>"])
    assert fingerprint(found)[1:] == (TINY, 2049)


def test_one_other_token_changes_it():
    whole = encoder(read())

    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        return [7 if token == 1229 else token for token in whole(text)]  # "The"

    assert fingerprint(SimpleNamespace(encode=encode)).digest != TINY


def test_boundaries_of_tokens_count():
    """The same ids in another grouping are another tokenizer."""

    def grouped(size: int):
        return SimpleNamespace(encode=lambda text, add_special_tokens: [1] * (len(text) // size))

    assert fingerprint(grouped(1)).digest != fingerprint(grouped(2)).digest


def test_mistral_commons_own_and_the_one_that_knows_chats_are_the_same():
    pytest.importorskip("mistral_common")
    own = load_tokenizer("tekken").library
    assert fingerprint(own)[1:] == (TEKKEN, 131072)
    assert fingerprint(SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=own)))[1:] == (TEKKEN, 131072)
    assert load_tokenizer("tekken").fingerprint == ("tekken", TEKKEN, 131072)


def test_no_probe_is_long_or_looks_like_a_special_token():
    found = list(fingerprint_texts())
    assert max(map(len, found)) < 512
    assert not any(mark in text for text in found for mark in ("<|", "|>", "<s>", "[INST]", "<unk>", "<pad>", "<bos>"))


def test_the_name_is_what_was_requested_for():
    assert load_tokenizer("tiny").fingerprint.name == "tiny"
    assert load_tokenizer(str(model_path())).fingerprint == (str(model_path()), TINY, 2048)
    assert wrap(read()).fingerprint.name == "Tokenizer"


def test_a_tokenizer_that_is_not_there():
    with pytest.raises(SettingsError, match=r"no such tokenizer.*Known"):
        load_tokenizer("tinny")


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(SettingsError, match=r"tokenizer.*found.*expected"):
        load_tokenizer(str(tmp_path))


def test_many_texts_at_once_are_as_one_by_one():
    texts = ["The cat", "", "  def f(x):\n\treturn x", "天地 " * 300]
    for found, one in ((load_tokenizer("tiny"), encoder(read())), (wrap(read(), "x"), encoder(read()))):
        assert [list(ids) for ids in found.encode_many(texts)] == [one(text) for text in texts]
        assert [found.encode(text).tolist() for text in texts] == [one(text) for text in texts]


def test_a_wrapper_that_does_otherwise_than_what_it_wraps_is_believed():
    whole = encoder(read())

    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        return whole(text.lower())

    wrapper = SimpleNamespace(encode=encode, decode=str, backend_tokenizer=read())
    assert wrap(wrapper).encode("The Cat").tolist() == whole("the cat") != whole("The Cat")


def test_truncation_that_a_file_asks_for_is_switched_off():
    found = read()
    found.enable_truncation(4)
    found.enable_padding(length=16)
    wrapped, text = wrap(found), "The cat sat on the mat " * 9
    assert wrapped.encode(text).tolist() == encoder(read())(text)
    assert wrapped.fingerprint.digest == TINY
