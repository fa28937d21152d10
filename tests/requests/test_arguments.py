"""The spellings of specplug's request fields, and the splitting of texts for the tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import RequestError
from specplug.requests import arguments, wire
from specplug.requests.parsing import parse_request_fields
from specplug.requests.schema import RequestFields
from specplug.settings.model import Limits
from specplug.text.request_tokenizer import RequestTokenizer
from specplug.text.retokenized import PIECE, pieces
from specplug.types.request import RequestOptions

TINY = Path(__file__).parents[2] / "specplug" / "tools" / "demo" / "models" / "tiny"


def refusal(extra_args) -> str:
    with pytest.raises(RequestError) as caught:
        arguments.split(extra_args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("extra_args", "given"),
    [
        (None, False),
        ({}, False),
        ({"kv_transfer_params": {}, "specplugin": 1}, False),
        ({"specplug": {}}, True),
        ({"specplug_tenant": "a"}, True),
        ({"specplug": wire.encode(RequestOptions(), (), None)}, False),
        (wire.packed({"specplug": wire.encode(RequestOptions(), (), None)}), False),
        ({1: "a", None: 2}, False),
    ],
)
def test_a_request_without_fields_is_left_alone(extra_args, given):
    assert arguments.are_given(extra_args) is given


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ({"specplug": {"enabled": False}}, {"enabled": False}),
        ({"specplug": '{"enabled": false, "tenant": "a"}'}, {"enabled": False, "tenant": "a"}),
        ({"specplug": None}, {}),
        ({"specplug": "{}", "specplug_tenant": "a"}, {"tenant": "a"}),
        ({"specplug_enabled": 0}, {"enabled": False}),
        ({"specplug_enabled": 1.0}, {"enabled": True}),
        ({"specplug_enabled": "False"}, {"enabled": False}),
        ({"specplug_store": "1"}, {"store": True}),
        ({"specplug_store": True}, {"store": True}),
        ({"specplug_enabled": "off"}, {"enabled": "off"}),
        ({"specplug_enabled": [1]}, {"enabled": [1]}),
        ({"specplug_num_speculative_tokens": 3}, {"num_speculative_tokens": 3}),
        ({"specplug_num_speculative_tokens": "3"}, {"num_speculative_tokens": 3}),
        ({"specplug_num_speculative_tokens": "-3"}, {"num_speculative_tokens": "-3"}),
        ({"specplug_num_speculative_tokens": "9" * 5000}, {"num_speculative_tokens": "9" * 5000}),
        ({"specplug_proposer": "ngram"}, {"proposer": "ngram"}),
        ({"specplug_prediction": '{"a": 1}'}, {"prediction": {"type": "content", "content": '{"a": 1}'}}),
        ({"specplug_references": "a text"}, {"references": "a text"}),
        ({"specplug_references": ["a", "b"]}, {"references": ["a", "b"]}),
        ({"specplug_references": [1, 2]}, {"references": {"token_ids": [1, 2]}}),
        ({"specplug_references": [1, "2"]}, {"references": {"token_ids": [1, "2"]}}),
        ({"specplug_references": []}, {"references": []}),
        ({"specplug_references": '{"text": "a"}'}, {"references": {"text": "a"}}),
        ({"specplug_references": ' [ {"token_ids": [1]}, "a"]'}, {"references": [{"token_ids": [1]}, "a"]}),
        ({"specplug_corpora": "notes"}, {"corpora": "notes"}),
        ({"specplug_corpora": ["notes", "code"]}, {"corpora": ["notes", "code"]}),
        ({"specplug_documents": "a.txt"}, {"documents": "a.txt"}),
        ({"specplug_documents": ["a.txt", "[1].txt"]}, {"documents": ["a.txt", "[1].txt"]}),
        ({"specplug_documents": [{"name": "a"}]}, {"documents": [{"name": "a"}]}),
        ({"specplug_documents": '{"name": "a", "corpus": "b"}'}, {"documents": {"name": "a", "corpus": "b"}}),
        (
            {"specplug_documents": '[{"corpus": "b", "name": "a"}, "c"]'},
            {"documents": [{"corpus": "b", "name": "a"}, "c"]},
        ),
        ({"specplug_documents": '{"title": "a"}'}, {"documents": '{"title": "a"}'}),
        # JSON that is a text to copy from, and not references
        ({"specplug_references": '{"title": "a", "text": "b"}'}, {"references": '{"title": "a", "text": "b"}'}),
        ({"specplug_references": "[1, 2]"}, {"references": "[1, 2]"}),
        ({"specplug_references": '["a"]'}, {"references": '["a"]'}),
    ],
)
def test_every_spelling_is_understood(spelled, meant):
    rest = {"kv_transfer_params": {"a": 1}, "specplugin": 2}
    assert arguments.split({**spelled, **rest}) == (meant, rest)


PREDICTION = {"type": "content", "content": "a"}


@pytest.mark.parametrize(
    ("extra_args", "meant"),
    [
        (None, {}),
        ({"other": 1}, {}),
        ({"specplug": None}, {}),
        ({"specplug": {"tenant": "a"}, "specplug_references": "b"}, {"tenant": "a", "references": "b"}),
        ({"specplug": '{"tenant": "a"}'}, {"tenant": "a"}),
    ],
)
def test_the_requests_own_prediction_is_one_of_the_fields(extra_args, meant):
    before = repr(extra_args)
    merged = arguments.with_prediction(extra_args, PREDICTION)
    assert arguments.are_given(merged)
    rest = {"other": 1} if extra_args and "other" in extra_args else {}
    assert arguments.split(merged) == ({**meant, "prediction": PREDICTION}, rest)
    assert repr(extra_args) == before


def test_a_prediction_beside_parsed_arguments_is_theirs_already():
    parsed = {"specplug": wire.encode(RequestOptions(), (), None)}
    assert arguments.with_prediction(parsed, PREDICTION) == parsed
    assert arguments.with_prediction(wire.packed(parsed), PREDICTION) == wire.packed(parsed)


@pytest.mark.parametrize(
    ("extra_args", "fragment"),
    [
        ({"specplug_prediction": "a"}, "and 'specplug_prediction'"),
        ({"specplug": {"prediction": PREDICTION}}, "and 'prediction' inside 'specplug'"),
        ({"specplug": {"prediction": None}}, "and 'prediction' inside 'specplug'"),
        ({"specplug": "{"}, "malformed request fields"),
        ({"specplug": [1]}, "malformed request fields"),
    ],
)
def test_a_prediction_that_is_given_twice_is_refused(extra_args, fragment):
    with pytest.raises(RequestError) as caught:
        arguments.split(arguments.with_prediction(extra_args, PREDICTION))
    assert fragment in str(caught.value)
    if "malformed" not in fragment:
        assert "request field 'prediction' is given twice" in str(caught.value)


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_every_key_is_documented_for_each_engine_and_no_other(engine: str):
    text = (Path(__file__).parents[2] / "docs" / "requests.md").read_text(encoding="utf-8")
    (header,) = re.findall(r"^\| Key (\|.*)\|$", text, flags=re.MULTILINE)
    column = [name.strip() for name in header.split("|")].index(engine)
    rows = re.findall(r"^\| `(specplug\w*)` (\|.*)\|$", text, flags=re.MULTILINE)
    documented = [key for key, cells in rows if cells.split("|")[column].strip()]
    assert sorted(documented) == sorted(["specplug", *(f"specplug_{name}" for name in RequestFields.model_fields)])


@pytest.mark.parametrize(
    ("spelled", "fragments"),
    [
        (
            {"specplug_refrences": "a"},
            ["unknown request field 'specplug_refrences'", "Did you mean 'specplug_references'?"],
        ),
        ({"specplug_": 1}, ["unknown request field 'specplug_'"]),
        (
            {"specplug": '{"tenant": "a"}', "specplug_tenant": "a"},
            ["'tenant' is given twice", "'specplug_tenant'", "inside 'specplug'"],
        ),
        ({"specplug": '{"tenant": "a", "tenant": "b"}'}, ["malformed request fields", "key 'tenant' twice"]),
        ({"specplug": "enabled"}, ["malformed request fields", "expected a JSON object"]),
        ({"specplug": [1]}, ["malformed request fields", "found [1]", "expected a JSON object"]),
        ({"specplug": 1}, ["malformed request fields", "found 1"]),
        ({"specplug_references": '{"text": "a"'}, ["malformed request fields", "expected references as JSON"]),
        ({"specplug_references": '{"text": "a"}, "enabled": false'}, ["malformed request fields"]),
        ({"specplug_documents": '{"name": "a"'}, ["malformed request fields", "expected documents as JSON"]),
    ],
)
def test_wrong_spellings_are_refused_with_a_hint(spelled, fragments):
    message = refusal(spelled)
    assert [fragment for fragment in fragments if fragment not in message] == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["specplug", *(f"specplug_{name}" for name in RequestFields.model_fields)])


@given(st.dictionaries(keys, json_values | json_values.map(json.dumps), max_size=3))
def test_whatever_comes_is_split_or_refused(extra_args):
    """Nothing but a `RequestError` may leave: any other exception would be the server's fault, not the client's."""
    assert arguments.characters(extra_args) >= 0
    try:
        found, rest = arguments.split(extra_args)
    except RequestError:
        return
    assert rest == {}
    assert {name for name in RequestFields.model_fields if f"specplug_{name}" in extra_args} <= set(found)


def test_size_counts_texts_wherever_they_stand():
    text = "a" * 1000
    for extra_args in (
        {"specplug": text},
        {"specplug": {"references": [{"text": text}]}},
        {"specplug_references": [text[:500], text[500:]]},
        {"specplug_references": [1] * 1000},
        {"specplug": {"references": [{"token_ids": np.ones(1000, dtype=np.int32)}]}},
        {"specplug_prediction": text, "other": text},
    ):
        assert 1000 <= arguments.characters(extra_args) < 1100


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
    transformers = pytest.importorskip("transformers")
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


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("prediction", "specplug_prediction"),
        ("num_speculative_tokens", "specplug_num_speculative_tokens"),
        ("spec_plug_prediction", "specplug_prediction"),
        ("specplug-prediction", "specplug_prediction"),
        ("SPECPLUG_REFERENCES", "specplug_references"),
        ("speclug_prediction", "specplug_prediction"),
        ("Specplug", "specplug"),
    ],
)
def test_a_near_miss_is_logged_once_and_left_to_others(monkeypatch, caplog, key, meant):
    monkeypatch.setattr(arguments, "_warned", set())
    for _ in range(3):
        assert arguments.are_given({key: "text", "specplug_store": True})
        assert not arguments.are_given({key: "text"})
    (record,) = caplog.records
    assert f"{key!r}, which is no field of specplug's; did they mean {meant!r}" in record.getMessage()


@pytest.mark.parametrize("key", ["specplug_prediction", "thinking_budget", "spec", "special_tokens", "s" * 10_000])
def test_what_is_others_is_not_warned_of(monkeypatch, caplog, key):
    monkeypatch.setattr(arguments, "_warned", set())
    arguments.are_given({key: "text"})
    assert not caplog.records


def test_clients_cannot_fill_the_log_with_near_misses(monkeypatch, caplog):
    monkeypatch.setattr(arguments, "_warned", set())
    for number in range(100):
        arguments.are_given({f"speclug_prediction{number}": "text"})
    assert len(caplog.records) == arguments._MOST_WARNED


def test_a_prediction_that_is_no_text_is_refused_as_such():
    given, _ = arguments.split({"specplug_prediction": 5})
    with pytest.raises(RequestError, match="bad value for request field 'prediction'; found 5; expected a text"):
        parse_request_fields(given, tokenize=lambda text: [], vocab_size=9, limits=Limits())
