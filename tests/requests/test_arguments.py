"""The spellings of specplug's request fields: which keys are its own, what they mean, and what is no field."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import RequestError
from specplug.requests import arguments, wire
from tests.requests.parser import FIELDS, json_texts, json_values, parsed, refusal

NO_FIELDS = wire.NO_FIELDS
PREDICTION = {"type": "content", "content": "a"}


@pytest.mark.parametrize(
    ("extra_args", "are_given"),
    [
        (None, False),
        ({}, False),
        ({"kv_transfer_params": {}, "specplugin": 1}, False),
        ({"specplug": {}}, True),
        ({"specplug_tenant": "a"}, True),
        (NO_FIELDS, False),
        ({1: "a", None: 2}, False),
    ],
)
def test_a_request_without_fields_is_left_alone(extra_args, are_given):
    assert arguments.has_fields(extra_args) is are_given


SPELLINGS = [
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
    ({"specplug_documents": '[{"corpus": "b"}, "c"]'}, {"documents": [{"corpus": "b"}, "c"]}),
    ({"specplug_documents": '{"title": "a"}'}, {"documents": '{"title": "a"}'}),
    # JSON that is a text to copy from, and not references
    ({"specplug_references": '{"title": "a", "text": "b"}'}, {"references": '{"title": "a", "text": "b"}'}),
    ({"specplug_references": "[1, 2]"}, {"references": "[1, 2]"}),
    ({"specplug_references": '["a"]'}, {"references": '["a"]'}),
]


@pytest.mark.parametrize(("spelled", "meant"), SPELLINGS)
def test_every_spelling_is_understood(spelled, meant):
    rest = {"kv_transfer_params": {"a": 1}, "specplugin": 2}
    assert arguments.split({**spelled, **rest}) == (meant, rest)


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
    assert arguments.has_fields(merged)
    rest = {"other": 1} if extra_args and "other" in extra_args else {}
    assert arguments.split(merged) == ({**meant, "prediction": PREDICTION}, rest)
    assert repr(extra_args) == before


def test_a_prediction_beside_parsed_arguments_is_theirs_already():
    assert arguments.with_prediction(NO_FIELDS, PREDICTION) == NO_FIELDS


TWICE = "request field 'prediction' is given twice"


@pytest.mark.parametrize(
    ("extra_args", "fragments"),
    [
        ({"specplug_prediction": "a"}, [TWICE, "and 'specplug_prediction'"]),
        ({"specplug": {"prediction": PREDICTION}}, [TWICE, "and 'prediction' inside 'specplug'"]),
        ({"specplug": {"prediction": None}}, [TWICE, "and 'prediction' inside 'specplug'"]),
        ({"specplug": "{"}, ["malformed request fields"]),
        ({"specplug": [1]}, ["malformed request fields"]),
    ],
)
def test_a_prediction_that_is_given_twice_is_refused(extra_args, fragments):
    with pytest.raises(RequestError) as caught:
        arguments.split(arguments.with_prediction(extra_args, PREDICTION))
    assert [fragment for fragment in fragments if fragment not in str(caught.value)] == []


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_every_key_is_documented_for_each_engine_and_no_other(engine: str):
    text = (Path(__file__).parents[2] / "docs" / "requests.md").read_text(encoding="utf-8")
    (header,) = re.findall(r"^\| Key (\|.*)\|$", text, flags=re.MULTILINE)
    column = [name.strip() for name in header.split("|")].index(engine)
    rows = re.findall(r"^\| `(specplug\w*)` (\|.*)\|$", text, flags=re.MULTILINE)
    documented = [key for key, cells in rows if cells.split("|")[column].strip()]
    assert sorted(documented) == sorted(["specplug", *(f"specplug_{name}" for name in FIELDS)])


MALFORMED = "malformed request fields"


@pytest.mark.parametrize(
    ("spelled", "fragments"),
    [
        ({"specplug_refrences": "a"}, ["unknown request field 'specplug_refrences'", "mean 'specplug_references'?"]),
        ({"specplug_": 1}, ["unknown request field 'specplug_'"]),
        ({"specplug": '{"tenant": "a"}', "specplug_tenant": "a"}, ["'tenant' is given twice", "inside 'specplug'"]),
        ({"specplug": '{"tenant": "a", "tenant": "b"}'}, [MALFORMED, "found key 'tenant' twice"]),
        ({"specplug": "enabled"}, [MALFORMED, "expected a JSON object"]),
        ({"specplug": '{"enabled"'}, [MALFORMED, "expected a JSON object"]),
        ({"specplug": "[" * 100_000}, [MALFORMED, "expected a JSON object"]),
        ({"specplug": "[1]"}, [MALFORMED, "found [1]", "expected a JSON object"]),
        ({"specplug": [1]}, [MALFORMED, "found [1]", "expected a JSON object"]),
        ({"specplug": 1}, [MALFORMED, "found 1"]),
        ({"specplug_references": '{"text": "a"'}, [MALFORMED, "expected references as JSON"]),
        ({"specplug_references": '{"text": "a"}, "enabled": false'}, [MALFORMED]),
        ({"specplug_documents": '{"name": "a"'}, [MALFORMED, "expected documents as JSON"]),
        ({"specplug_prediction": 5}, ["bad value for request field 'prediction'; found 5; expected a text"]),
    ],
)
def test_wrong_spellings_are_refused_with_a_hint(spelled, fragments):
    message = refusal(spelled)
    assert [fragment for fragment in fragments if fragment not in message] == []
    assert "\n" not in message


@given(
    st.dictionaries(st.sampled_from(["specplug", *(f"specplug_{name}" for name in FIELDS)]), json_values | json_texts)
)
def test_whatever_comes_is_parsed_or_refused(extra_args):
    """Nothing but a `RequestError` may leave: any other exception would be the server's fault, not the client's."""
    assert arguments.characters(extra_args) >= 0
    try:
        fields, rest = arguments.split(extra_args)
        assert rest == {}
        assert {name for name in FIELDS if f"specplug_{name}" in extra_args} <= set(fields)
        options, references, _ = parsed(extra_args)
    except RequestError:
        return
    assert options.enabled is fields.get("enabled", True)
    assert all(0 <= token < 256 for reference in references for token in reference.token_ids.tolist())


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
        *((key, None) for key in ("specplug_prediction", "thinking_budget", "spec", "special_tokens", "s" * 10_000)),
    ],
)
def test_a_near_miss_is_logged_once_and_left_to_others(monkeypatch, caplog, key, meant):
    monkeypatch.setattr(arguments, "_warned", set())
    for _ in range(3):
        assert arguments.has_fields({key: "text", "specplug_store": True})
        assert arguments.has_fields({key: "text"}) is key.startswith("specplug_")
    expected = [] if meant is None else [f"{key!r}, which is no field of specplug's; did they mean {meant!r}"]
    assert len(caplog.records) == len(expected)
    assert all(text in caplog.text for text in expected)


def test_clients_cannot_fill_the_log_with_near_misses(monkeypatch, caplog):
    monkeypatch.setattr(arguments, "_warned", set())
    for number in range(100):
        arguments.has_fields({f"speclug_prediction{number}": "text"})
    assert len(caplog.records) == arguments._MAX_WARNED
