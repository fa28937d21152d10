"""Vocabularies have the bytes that the libraries decode ids to, and tokenizers that alter text are refused by name."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers

from specplug.demo import model_path
from specplug.errors import SettingsError
from specplug.text.fingerprint_texts import fingerprint_texts
from specplug.text.translate.libraries import byte_alphabet, read_vocabulary
from tests.text.translate.tools import NAMES, library, own_encoding, vocabulary


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_that_the_library_decodes_to(name):
    found, decode = vocabulary(name), library(name).decode
    for text in fingerprint_texts():
        ids = own_encoding(name, f"{text}\ue000")[len(found.prefix) :]
        data = found.bytes_of(ids)
        assert decode(ids) == (data.decode() if found.space_prefix == "never" else data.decode().removeprefix(" "))


@pytest.mark.parametrize("name", [*NAMES, "tiktoken"])
def test_every_id_has_bytes_or_is_a_control_token(name):
    found = vocabulary(name)
    assert [token for token, piece in enumerate(found.pieces) if bool(piece) == (token in found.controls)] == []
    assert [found.pieces[token] for token in found.byte_ids] == [bytes([byte]) for byte in range(256)]


def test_what_stands_around_text():
    described = {name: vocabulary(name) for name in NAMES}
    assert {name: found.prefix for name, found in described.items()} == {
        "tiny": (), "spm1": (1,), "spm3": (1,), "tekken": (1,), "byte_level": (0,), "byte_fallback": (),
    }  # fmt: skip
    assert [name for name, found in described.items() if found.space_prefix == "every"] == ["spm1", "spm3"]
    assert described["byte_fallback"].space_prefix == "first"
    assert described["tekken"].unk_id == described["spm1"].unk_id == described["byte_fallback"].unk_id == 0
    assert described["tiny"].eos_id == 0
    assert described["byte_level"].controls[1200] == "<think>"


@pytest.mark.parametrize("name", NAMES)
def test_text_is_never_a_control_token(name):
    found = vocabulary(name)
    for text in list(found.controls.values())[:32]:
        assert found.bytes_of(found.encode(text)) == text.encode()


def test_runs_of_spaces_that_are_added_tokens_are_text():
    found = vocabulary("byte_level")
    assert found.pieces[1201:] == (b" " * 4, b" " * 8)
    assert found.encode("a" + " " * 12 + "b") == library("byte_level").encode("a" + " " * 12 + "b").ids[1:]
    assert {1201, 1202} <= set(found.encode("a" + " " * 12 + "b"))


def test_the_two_ways_to_put_a_space_before_text():
    content = json.loads(library("byte_fallback").to_str())
    steps = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    content.update(pre_tokenizer=None, normalizer={"type": "Sequence", "normalizers": steps})
    older = read_vocabulary(Tokenizer.from_str(json.dumps(content)))
    assert older.space_prefix == "every"
    for text in ("Hello  world", " a", "一 b"):
        assert older.encode(text) == vocabulary("byte_fallback").encode(text)
        assert older.encode(f" {text}") == Tokenizer.from_str(json.dumps(content)).encode(text).ids


def test_tiktokens_own_and_tekkens_are_the_same():
    tekken, own = vocabulary("tekken"), vocabulary("tiktoken")
    assert own.pieces == tekken.pieces[1000:]
    assert own.encode("héllo  you") == [token - 1000 for token in tekken.encode("héllo  you")]


def test_wrappers_are_looked_into():
    transformers = pytest.importorskip("transformers")
    found = read_vocabulary(transformers.AutoTokenizer.from_pretrained(model_path()))
    assert (found.pieces, found.eos_id) == (vocabulary("tiny").pieces, 0)
    chat = SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=library("spm1").library))
    assert read_vocabulary(chat).pieces == vocabulary("spm1").pieces


def test_the_byte_alphabet_is_the_librarys():
    found = byte_alphabet()
    assert sorted(found.values()) == list(range(256))
    assert (found["a"], found["Ġ"], found["Ċ"], found["é"]) == (ord("a"), ord(" "), ord("\n"), 0xE9)


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Lowercase(),
        normalizers.NFKC(),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        normalizers.Replace(Regex(" +"), " "),
    ],
)
def test_a_tokenizer_that_alters_text_is_refused_by_name(normalizer):
    found = Tokenizer.from_str(library("byte_level").to_str())
    found.normalizer = normalizer
    with pytest.raises(SettingsError, match=r"mine: cannot.*alters text; found .* for .*; expected .*\. "):
        read_vocabulary(found, "mine")


def test_a_tokenizer_without_a_token_for_each_byte_is_refused_by_name():
    words = {"[UNK]": 0, "hello": 1, "##s": 2}
    for model in (models.WordPiece(words, unk_token="[UNK]"), models.WordLevel(words, unk_token="[UNK]")):
        with pytest.raises(SettingsError, match=r"mine: cannot.*found no token for 256 of 256 bytes.*expected.*Choose"):
            read_vocabulary(Tokenizer(model), "mine")


def test_the_models_unknown_token_is_one_even_if_it_was_not_added():
    content = json.loads(library("byte_fallback").to_str())
    found = read_vocabulary(Tokenizer.from_str(json.dumps({**content, "added_tokens": []})))
    assert (found.controls, found.pieces[0]) == ({0: "<unk>"}, b"")


def test_an_unknown_library_is_refused():
    itself = SimpleNamespace(encode=list)
    itself.tokenizer = itself
    with pytest.raises(SettingsError, match="found SimpleNamespace"):
        read_vocabulary(itself)
    with pytest.raises(SettingsError, match=r"mine: cannot translate.*found SimpleNamespace; expected"):
        read_vocabulary(SimpleNamespace(encode=list), "mine")
