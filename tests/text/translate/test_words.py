"""Words have the tokens that they have within a text, and a rule for boundaries that fails is not used."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.text.translate.vocabulary import ESCAPED
from specplug.text.translate.words import LONGEST_WORD, WordEncoder, cuts_of, words
from tests.text.translate.tools import NAMES, PARTIAL, TEXTS, translator, vocabulary


def encoder(name: str) -> WordEncoder:
    return translator(name, "tiny" if name != "tiny" else "tekken").target_words


@given(st.sampled_from(NAMES), st.binary(max_size=12), TEXTS)
def test_words_are_all_the_text_and_their_tokens_have_its_bytes(name, data, text):
    text = text + data.decode(errors=ESCAPED) + text
    found = encoder(name)
    assert "".join(found.words(text)) == text
    assert max(map(len, found.words(text)), default=0) <= LONGEST_WORD
    assert found.vocabulary.bytes_of(found.text(text)) == text.encode(errors=ESCAPED)


@given(st.sampled_from((*NAMES, *PARTIAL)), TEXTS, TEXTS)
def test_all_words_but_the_last_stay_when_a_text_continues(name, text, more):
    *closed, _ = encoder(name).words(text) or [""]
    assert encoder(name).words(text + more)[: len(closed)] == closed


@pytest.mark.parametrize("name", [*NAMES, *PARTIAL])
def test_no_token_holds_a_boundary(name):
    texts = {piece: piece.decode(errors="ignore") for piece in vocabulary(name).pieces}
    whole = [text for piece, text in texts.items() if text.encode() == piece != b""]
    assert [text for text in whole if len(encoder(name).words(text)) > 1] == []


def test_words_of_tokenizers():
    text = "I'll be (here), soon\n  after"
    assert encoder("tekken").words(text) == ["I'll", " be", " (here", "),", " soon\n  after"]
    assert encoder("spm1").words("你好 x\ny z") == ["你", "好", " x", "\n", "y", " z"]
    assert encoder("tekken").words("我们去\uff0c你觉得") == ["我们去", "\uff0c你觉得"]


def test_a_word_without_boundaries_is_cut_wherever_the_text_ends():
    whole = encoder("tiny").words("a" * 600 + " b")
    assert list(map(len, whole)) == [256, 256, 88, 2]
    assert encoder("tiny").words("a" * 512 + " b")[1:] == ["a" * 256, " b"]
    assert encoder("tiny").words("a" * 256) == ["a" * 256]


def test_a_rule_that_fails_is_not_used():
    whole = vocabulary("tekken")
    (comma,), text = whole.encode(","), "one, two"

    def encode(text: str) -> list[int]:  # as if it merged letters with a comma after them
        return whole.encode(text)[::-1] if "," in text.strip(",") else whole.encode(text)

    assert words(text, cuts_of(whole)) == ["one", ",", " two"]
    assert words(text, cuts_of(replace(whole, encode=encode))) == ["one, two"]
    assert comma in whole.encode(text)


def test_what_a_tokenizer_would_lose_is_spelled_in_bytes():
    found = encoder("spm3")
    assert found.word("\u2581") == tuple(found.vocabulary.spelled("\u2581"))
    assert found.vocabulary.bytes_of(found.word("a\u2581b")) == "a\u2581b".encode()
    assert found.word("\udce2") == (found.vocabulary.byte_ids[0xE2],)


def test_words_are_cached_and_the_cache_is_bounded():
    texts: list[str] = []
    whole = vocabulary("tekken")
    found = WordEncoder(replace(whole, encode=lambda text: texts.append(text) or whole.encode(text)), cached=2)
    texts.clear()
    for word in (" a", " a", " b", " c", " a"):
        found.word(word)
    assert texts == [" a", " b", " c", " a"]
