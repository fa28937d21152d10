"""Texts and ids of a request become references: in every form, in order, within limits, large ones soon refused."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import ContractError, RequestError
from specplug.requests.references import CHARACTERS_PER_TOKEN, in_vocabulary, parsed_ids, to_references
from specplug.text.request_tokenizer import RequestTokenizer
from specplug.text.retokenized import PIECE, pieces
from specplug.types.request import Reference
from tests.requests.parser import VOCAB, parsed, refusal, texts_of

TINY = Path(__file__).parents[2] / "specplug" / "tools" / "demo" / "models" / "tiny"
SPACES = " " * (2 * CHARACTERS_PER_TOKEN)


def must_not_run(text: str) -> list[int]:
    raise AssertionError("tokenised before its size was checked")


@pytest.mark.parametrize(
    ("contents", "limit", "tokenize", "found"),
    [
        (["ab", np.arange(2), np.arange(1)], 2, must_not_run, "found 3 tokens; expected at most 2 tokens in all"),
        ([np.arange(1), SPACES, "."], 3, must_not_run, f"found {len(SPACES) + 1} characters and 1 tokens; expected"),
        (["ab", "cde"], 4, lambda text: list(text.encode()), "found 5 tokens up to 'references.1'"),
    ],
)
def test_sizes_are_checked_before_anything_is_tokenised(contents, limit, tokenize, found):
    sources = [(f"references.{index}", "name", content) for index, content in enumerate(contents)]
    with pytest.raises(RequestError, match=re.escape(found)) as caught:
        to_references(sources, tokenize, VOCAB, limit)
    assert "limits.max_reference_tokens" in str(caught.value)


def test_as_many_tokens_as_allowed_are_taken():
    assert len(parsed({"specplug_references": ["ab", "cd"]}, max_reference_tokens=4)[1]) == 2
    references = to_references([("a", "a", np.array([1])), ("b", "b", SPACES)], lambda text: [7, 8], VOCAB, 3)
    assert [reference.token_ids.tolist() for reference in references] == [[1], [7, 8]]


def encoded(tokens: list[int]) -> str:
    return base64.b64encode(np.array(tokens, dtype="<i4").tobytes()).decode()


@pytest.mark.parametrize("count", [0, 1, 2, 3, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 50_000])
def test_ids_arrive_in_every_form_and_size(count: int):
    tokens = [index * 7919 % VOCAB for index in range(count)]
    for form in (tokens, tuple(tokens), encoded(tokens), np.array(tokens, dtype=np.uint16)):
        _, references, _ = parsed({"specplug": {"references": [{"token_ids": form}, "a"]}})
        assert references[:-1] == ((Reference.of(tokens, "reference 1"),) if tokens else ())


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), st.integers(1, 2**31))
def test_ids_are_converted_and_checked_as_plain_python_would(tokens: list[int], vocab_size: int):
    for form in (tokens, encoded(tokens)):
        ids = parsed_ids(form)
        assert ids.tolist() == tokens
        wrong = [index for index, token in enumerate(tokens) if not 0 <= token < vocab_size]
        if wrong:
            with pytest.raises(RequestError, match=f"found {tokens[wrong[0]]} as entry {wrong[0]};"):
                in_vocabulary("references.0", ids, vocab_size)
        else:
            checked = in_vocabulary("references.0", ids, vocab_size)
            assert (checked.dtype, checked.tolist()) == (np.int32, tokens)


@pytest.mark.parametrize("place", [0, 16_384 * 4 - 4, 16_384 * 4])
def test_base64_is_checked_to_its_end(place: int):
    text = encoded(list(range(30_000)))
    for wrong in ("=", "!", " "):
        with pytest.raises(ValueError, match="base64 of little-endian 32-bit integers"):
            parsed_ids(text[:place] + wrong + text[place + 1 :])


def test_a_bad_entry_in_the_middle_of_many_is_named():
    tokens: list[object] = [1] * 40_000
    tokens[30_000] = True
    message = refusal({"specplug": {"references": [{"token_ids": tokens}]}})
    assert "entry 30000 is True" in message
    assert len(message) < 300


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8))
def test_texts_arrive_whole_and_in_order(texts: list[str]):
    _, references, _ = parsed({"specplug": {"references": texts}})
    plain = [text.replace("\r\n", "\n").replace("\xa0", " ").encode() for text in texts if text]
    assert [text for _, text in texts_of(references)] == plain


def test_references_are_equal_by_value_and_cannot_be_written():
    mine = np.array([1, 2, 3], dtype=np.int32)
    reference = Reference(mine, "a")
    assert reference == Reference.of([1, 2, 3], "a")
    assert hash(reference) == hash(Reference.of((1, 2, 3), "a"))
    assert len({reference, Reference.of([1, 2, 4], "a"), Reference.of([1, 2, 3], "b")}) == 3
    assert reference != "a"
    assert np.shares_memory(reference.token_ids, mine)
    with pytest.raises(ValueError, match="read-only"):
        reference.token_ids[0] = 7


@pytest.mark.parametrize(
    ("token_ids", "found"),
    [((1, 2), "tuple"), (np.zeros(2), "[2] float64"), (np.zeros((1, 2), dtype=np.int32), "[1, 2] int32")],
)
def test_a_reference_holds_an_int32_array_and_nothing_else(token_ids, found):
    with pytest.raises(ContractError, match=re.escape(f"found {found}; expected an array, [n] int32")):
        Reference(token_ids)


@given(st.text(st.sampled_from("ab \n"), max_size=200), st.integers(1, 40))
def test_pieces_are_the_text(text: str, size: int):
    found = list(pieces(text, size))
    assert "".join(found) == text
    assert all(0 < len(piece) <= size for piece in found)
    for piece in found[:-1]:
        assert piece.endswith("\n") or not re.search(r"\n\S", piece)  # no line's end inside was passed over


def test_a_long_text_is_cut_at_line_ends():
    text = "".join(f"line {index}\n" for index in range(20_000))
    found = list(pieces(text))
    assert len(found) > 1
    assert all(piece.endswith("\n") for piece in found)
    assert all(PIECE - 100 < len(piece) <= PIECE for piece in found[:-1])


def test_tokens_are_those_of_the_tokenizer_and_of_nothing_else():
    import transformers

    original = transformers.AutoTokenizer.from_pretrained(TINY)
    tokenize = RequestTokenizer(lambda: original)
    text = "def area(r):\n    return 3.14 * r * r\n" * 4000
    ids = tokenize(text)
    assert ids.dtype == np.int32
    assert original.decode(ids.tolist()) == text
    assert ids.tolist() == original.encode(text, add_special_tokens=False)
    assert tokenize("").tolist() == []
    assert tokenize.copy() is not original


def test_texts_need_a_tokenizer():
    with pytest.raises(RequestError, match="needs a tokenizer"):
        RequestTokenizer(lambda: None)("a")
