"""Vocabularies have the bytes that the libraries decode ids to, and tokenizers that alter text are refused by name."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from specplug.errors import SettingsError
from specplug.text.fingerprint import fingerprint_texts
from specplug.text.translate.libraries import byte_alphabet, read_vocabulary
from specplug.tools.demo import model_path
from tests.text.translate.tools import NAMES, bytes_of, library, own_encoding, vocabulary


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_that_the_library_decodes_to(name):
    found, decode = vocabulary(name), library(name).decode
    for text in fingerprint_texts():
        ids = own_encoding(name, f"{text}\ue000")[len(found.prefix) :]
        data = bytes_of(found, ids).decode()
        assert decode(ids) == (data.removeprefix(" ") if name in ("spm1", "spm3", "byte_fallback") else data)


@pytest.mark.parametrize("name", [*NAMES, "tiktoken"])
def test_every_id_has_bytes_or_is_a_control_token(name):
    found = vocabulary(name)
    assert [token for token, piece in enumerate(found.pieces) if bool(piece) == (token in found.controls)] == []
    assert [found.pieces[token] for token in found.byte_ids] == [bytes([byte]) for byte in range(256)]


def test_what_stands_around_text():
    described = {name: vocabulary(name) for name in NAMES}
    assert {name: found.prefix for name, found in described.items()} == {
        "tiny": (), "spm1": (1,), "spm3": (1,), "tekken": (1,), "byte_level": (0,), "byte_fallback": (),
        "spaced": (), "added": (0,),
    }  # fmt: skip
    assert described["tekken"].unk_id == described["spm1"].unk_id == described["byte_fallback"].unk_id == 0
    assert described["tiny"].eos_id == 0
    assert described["byte_level"].controls == {
        0: "<|begin_of_text|>", 1: "<|im_start|>", 2: "<|im_end|>", 3: "<unk>"
    }  # fmt: skip
    assert not any(found.alters_text for found in described.values())


@pytest.mark.parametrize("name", ["spm1", "spm3", "tekken", "byte_level", "spaced", "added", "gaps"])
def test_text_is_never_a_control_token(name):
    found = vocabulary(name)
    for text in list(found.controls.values())[:32]:
        assert bytes_of(found, found.encode(text)) == text.encode()


def test_added_tokens_are_text_unless_they_are_special_or_named_in_bars():
    found, own = vocabulary("added"), library("added")
    for text in ("<think>", "<h1>", "tokeniz", "as well as"):
        token = own.token_to_id(text)
        assert (found.pieces[token], found.controls.get(token)) == (text.encode(), None)
        assert token in found.encode(f"x{text}y") == own.encode(f"x{text}y").ids[1:]
    barred = Tokenizer.from_str(library("byte_level").to_str())
    barred.add_tokens(["<|user|>", "<\uff5cUser\uff5c>"])
    assert list(read_vocabulary(barred).controls.values())[4:] == ["<|user|>", "<\uff5cUser\uff5c>"]


def test_an_added_token_that_ends_outputs_is_no_text():
    found = Tokenizer.from_str(library("byte_level").to_str())
    found.add_tokens(["</s>"])
    ends = found.token_to_id("</s>")
    assert read_vocabulary(found).pieces[ends] == b"</s>"
    read = read_vocabulary(SimpleNamespace(backend_tokenizer=found, eos_token_id=ends))
    assert (read.pieces[ends], read.controls[ends]) == (b"", "</s>")


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
    ("normalizer", "alters"),
    [
        (normalizers.Lowercase(), True),
        (normalizers.NFKC(), True),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), True),
        (normalizers.Replace(Regex(" {2,}"), " "), True),
        (normalizers.Strip(), False),
        (normalizers.NFC(), False),
    ],
)
def test_normalising_is_noticed_and_what_is_done_to_ends_or_by_composing_is_not_done(normalizer, alters):
    content = json.loads(library("byte_level").to_str())
    found = Tokenizer.from_str(json.dumps({**content, "added_tokens": content["added_tokens"][:4]}))
    found.normalizer = normalizer
    read = read_vocabulary(found)
    assert read.alters_text == alters
    assert read.spells(read.encode(" é e\u0301 "), " é e\u0301 ") or alters


def test_bytes_without_a_token_are_known():
    gaps, none = vocabulary("gaps"), vocabulary("no_fallback")
    assert [byte for byte in range(256) if gaps.byte_ids[byte] < 0][:4] == [0, 1, 2, 3]
    assert gaps.spelled("ab") == gaps.encode("a") + gaps.encode("b")
    assert gaps.spelled("a\x00") is none.spelled("a") is None
    assert set(none.byte_ids) == {-1}
    assert (gaps.alters_text, none.alters_text, none.unk_id) == (False, False, 2)


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"[UNK]": 0, "the": 1, "cat": 2, "##s": 3}, unk_token="[UNK]"),
        models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"),
        models.BPE({"t": 0, "h": 1, "e</w>": 2}, [], end_of_word_suffix="</w>"),
    ],
)
def test_a_tokenizer_whose_tokens_spell_no_text_is_refused_by_name(model):
    found = Tokenizer(model)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with pytest.raises(SettingsError, match=r"mine: cannot.*spell no text; found .* for 'the cat'; expected.*Choose"):
        read_vocabulary(found, "mine")


def test_a_token_that_several_pairs_make_is_made_by_any_of_them():
    """Vocabularies that were converted from SentencePiece's, such as Gemma's, list all pairs of tokens."""
    ids = {token: number for number, token in enumerate(["t", "h", "e", "th", "he", "the", "c", "a", " "])}
    found = Tokenizer(models.BPE(ids, [("h", "e"), ("t", "h"), ("th", "e"), ("t", "he")]))
    assert read_vocabulary(found).merges == {4: (0, 1), 3: (1, 1), 5: (2, 0)}
    assert found.encode("the").ids == [5]


def test_pieces_within_words_have_no_mark():
    words = {"[UNK]": 0, "天": 1, "##地": 2, "地": 3}
    found = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    read = read_vocabulary(found)
    assert read.pieces == (b"", "天".encode(), "地".encode(), "地".encode())
    assert (read.unk_id, read.encode("天地")) == (0, [1, 2])


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
