"""The fields of one request: what is accepted, and what is refused in which words."""

from __future__ import annotations

import json
import math

import pytest

from specplug import input_errors
from specplug.errors import RequestError
from specplug.requests import wire
from specplug.requests.parsing import parse_request_fields
from specplug.requests.schema import MAX_KEYS, MAX_PARTS
from specplug.settings import Limits
from specplug.types.request import Reference, RequestOptions, StoredDocument
from tests.requests.parser import FIELDS, parsed, parser_of, refusal, texts_of


def test_every_field_arrives():
    raw = {
        "enabled": False,
        "num_speculative_tokens": 0,
        "proposer": "ngram",
        "verifier": "typical",
        "acceptance_threshold": "prose",
        "store": False,
        "group": "epoch 3, prompt 7",
        "tenant": "acme",
        "references": [{"text": "ab", "name": "first"}, {"token_ids": [7, 255]}],
        "prediction": {"type": "content", "content": "cd"},
        "documents": [{"name": "a.txt", "corpus": "notes"}, {"name": "b.txt"}],
        "corpora": ["notes", "code"],
    }
    assert set(raw) == set(FIELDS)
    options = RequestOptions(
        enabled=False,
        num_speculative_tokens=0,
        proposer="ngram",
        verifier="typical",
        acceptance_threshold=0.3,
        store=False,
        group="epoch 3, prompt 7",
        corpora=("notes", "code"),
        documents=(StoredDocument("a.txt", "notes"), StoredDocument("b.txt")),
    )
    references = (
        Reference.of(list(b"cd"), "prediction"),
        Reference.of(list(b"ab"), "first"),
        Reference.of((7, 255), "reference 2"),
    )
    for given in (raw, json.dumps(raw)):
        assert parsed({"specplug": given, "other": 1}) == (options, references, "acme")


@pytest.mark.parametrize("raw", [None, {}, "{}", "null"])
def test_a_request_without_fields_gets_the_defaults(raw):
    assert parsed({"specplug": raw}) == (RequestOptions(), (), None)
    assert parse_request_fields(None, tokenize=len, vocab_size=9, limits=Limits()) == (RequestOptions(), (), None)


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"references": "ab"}, [("reference 1", b"ab")]),
        ({"references": ["ab", "c"]}, [("reference 1", b"ab"), ("reference 2", b"c")]),
        ({"references": ("ab",)}, [("reference 1", b"ab")]),
        ({"references": {"text": "ab", "name": "n"}}, [("n", b"ab")]),
        ({"references": ["ab", {"token_ids": [1]}]}, [("reference 1", b"ab"), ("reference 2", b"\1")]),
        ({"references": ["", {"token_ids": []}, "b"]}, [("reference 3", b"b")]),
        ({"references": []}, []),
        ({"references": None}, []),
        ({"references": "a\r\nb\u00a0c"}, [("reference 1", b"a\nb c")]),
        ({"prediction": {"type": "content", "content": "abc"}}, [("prediction", b"abc")]),
        ({"prediction": {"type": "content", "content": PARTS}}, [("prediction", b"abc")]),
        ({"prediction": {"type": "content", "content": "d\r\n"}}, [("prediction", b"d\n")]),
    ],
)
def test_texts_come_in_short_and_long_forms(fields, expected):
    _, references, _ = parsed({"specplug": fields})
    assert texts_of(references) == expected


MIXED = ("a", {"name": "a", "corpus": "c"}, {"name": "a"}, {"corpus": "d", "name": "a"})


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("corpora", "notes", ("notes",)),
        ("corpora", ["notes", "code"], ("notes", "code")),
        ("corpora", ["b", "a", "b"], ("b", "a")),
        ("corpora", [], ()),
        ("corpora", None, ()),
        ("documents", "a.txt", (StoredDocument("a.txt"),)),
        ("documents", {"name": "a.txt"}, (StoredDocument("a.txt", None),)),
        ("documents", MIXED, (StoredDocument("a"), StoredDocument("a", "c"), StoredDocument("a", "d"))),
        ("documents", None, ()),
    ],
)
def test_names_come_in_short_and_long_forms_and_stay_in_order_each_once(field, given, expected):
    options, references, _ = parsed({"specplug": {field: given}})
    assert options == RequestOptions(**{field: expected})
    assert hash(options) == hash(RequestOptions(**{field: expected}))
    assert references == ()


def reference(**fields):
    return {"references": [fields]}


IDS = "'references.0.token_ids'"
THRESHOLD = "request field 'acceptance_threshold': "
NUMBER_OR_NAME = "; expected a finite number, or a name of 1 to 256 characters"
NO_THRESHOLDS = (math.nan, True, 10**400, "", "a" * 257, "\ud800", ["prose"])

REFUSED = [
    ({"refrences": "a"}, ["unknown request field 'refrences'", "found 'a'", "Did you mean 'references'?"]),
    ({"enabled": "yes"}, ["'enabled'", "found 'yes'", "expected a valid boolean"]),
    ({"enabled": 1}, ["'enabled'", "found 1", "expected a valid boolean"]),
    ({"store": None}, ["'store'", "expected a valid boolean"]),
    ({"num_speculative_tokens": 257}, ["'num_speculative_tokens'", "found 257", "less than or equal to 256"]),
    ({"num_speculative_tokens": -1}, ["'num_speculative_tokens'", "found -1", "greater than or equal to 0"]),
    ({"num_speculative_tokens": True}, ["'num_speculative_tokens'", "found True", "a valid integer"]),
    ({"tenant": ""}, ["'tenant'", "at least 1 character"]),
    ({"tenant": 3}, ["'tenant'", "found 3", "a valid string"]),
    ({"proposer": "ngarm"}, ["'proposer': this server has not loaded the proposer; found 'ngarm'", "mean 'ngram'?"]),
    ({"verifier": "reference"}, ["'verifier': this server does not verify with it", "expected 'typical'"]),
    ({"acceptance_threshold": 0.5}, [THRESHOLD, "only to requests that name the server's lossy verifier"]),
    ({"acceptance_threshold": "code", "verifier": "typical"}, [THRESHOLD, "no such threshold", "expected 'prose'"]),
    ({"acceptance_threshold": 1.5, "verifier": "typical"}, [THRESHOLD, "out of range; found 1.5"]),
    *(({"acceptance_threshold": bad}, ["'acceptance_threshold'", NUMBER_OR_NAME]) for bad in NO_THRESHOLDS),
    ({"references": 3}, ["'references.0'", "found 3", "expected a mapping"]),
    ({"references": ["a", None]}, ["'references.1'", "expected a mapping"]),
    (reference(txt="a"), ["unknown request field 'references.0.txt'", "Did you mean 'references.0.text'?"]),
    (reference(), ["'references.0'", "expected either 'text' or 'token_ids'"]),
    (reference(text="a", token_ids=[1]), ["expected either 'text' or 'token_ids'"]),
    (reference(text=3), ["'references.0.text'", "found 3", "expected a string"]),
    (reference(token_ids=7), [IDS, "found 7", "expected a list of token ids"]),
    (reference(token_ids="a!"), [IDS, "found 'a!'", "expected base64"]),
    (reference(token_ids="é"), [IDS, "expected base64"]),
    (reference(token_ids="AAAA"), [IDS, "3 bytes are no multiple of 4"]),
    (reference(token_ids=[10**30]), [IDS, f"entry 0 is {10**30}"]),
    (reference(token_ids=[1, "2"]), [IDS, "entry 1 is '2'"]),
    (reference(token_ids=[1, True]), [IDS, "entry 1 is True"]),
    (reference(token_ids=[1.0]), [IDS, "entry 0 is 1.0"]),
    (reference(token_ids=[0, -1]), ["'references.0'", "found -1 as entry 1", "expected 0 to 255"]),
    (reference(token_ids=[0, 256]), ["'references.0'", "found 256 as entry 1"]),
    (reference(token_ids=[2**40]), ["'references.0'", f"found {2**40} as entry 0"]),
    ({"references": "a\ud800"}, ["'references.0.text'", "character 1 is a lone surrogate"]),
    (reference(text="a", name="\ud800"), ["'references.0.name'", "character 0 is a lone surrogate"]),
    ({"corpora": ""}, ["'corpora.0'", "at least 1 character"]),
    ({"corpora": ["a", 3]}, ["'corpora.1'", "found 3", "a valid string"]),
    ({"corpora": {"name": "a"}}, ["'corpora.0'", "a valid string"]),
    ({"corpora": "a\ud800"}, ["'corpora.0'", "unicode"]),
    ({"corpora": "a" * 257}, ["at most 256 characters"]),
    ({"documents": "a" * 257}, ["at most 256 characters"]),
    ({"documents": ["a", ""]}, ["'documents.1.name'", "at least 1 character"]),
    ({"documents": 3}, ["'documents.0'", "found 3", "expected a mapping"]),
    ({"documents": {"corpus": "a"}}, ["'documents.0.name' is missing"]),
    ({"documents": {"name": "a", "corpus": ""}}, ["'documents.0.corpus'", "at least 1 character"]),
    ({"documents": {"name": "a", "copus": "b"}}, ["unknown", "'documents.0.copus'", "mean 'documents.0.corpus'?"]),
    ({"prediction": 5}, ["'prediction'", "found 5", "expected a text as 'specplug_prediction', or OpenAI's"]),
    ({"prediction": "abc"}, ["'prediction'", "found 'abc'", "or OpenAI's object with 'type' and 'content'"]),
    ({"prediction": {"type": "text", "content": "a"}}, ["'prediction.type'", "expected 'content'"]),
    ({"prediction": {"type": "content"}}, ["'prediction.content' is missing"]),
    ({"prediction": {"type": "content", "content": [{"type": "text"}]}}, ["'prediction.content.0.text' is missing"]),
]


@pytest.mark.parametrize(("fields", "fragments"), REFUSED)
def test_wrong_fields_are_refused_with_key_value_and_expectation(fields, fragments: list[str]):
    message = refusal({"specplug": fields})
    assert [fragment for fragment in fragments if fragment not in message] == []
    assert "\n" not in message


PREDICTION = {"type": "content", "content": "c"}


@pytest.mark.parametrize(
    ("fields", "limit", "found"),
    [
        ({"references": [3] * 3}, {"max_references": 2}, "found 3, the prediction included; expected at most 2"),
        ({"references": "a", "prediction": PREDICTION}, {"max_references": 1}, "found 2"),
        ({"references": "a"}, {"max_references": 0}, "found 1"),
        ({"corpora": [3] * 3}, {"max_corpora": 2}, "in request field 'corpora'; found 3; expected at most 2."),
        ({"corpora": "a"}, {"max_corpora": 0}, "found 1;"),
        ({"documents": [3] * 3}, {"max_documents": 2}, "in request field 'documents'; found 3; expected at most 2."),
        ({"documents": "a"}, {"max_documents": 0}, "found 1;"),
    ],
)
def test_entries_are_counted_before_they_are_read(fields, limit, found):
    message = refusal({"specplug": fields}, **limit)
    (name,) = limit
    assert message.startswith("too many ")
    assert found in message
    assert f"limits.{name}" in message


def test_as_many_entries_as_allowed_are_taken():
    _, references, _ = parsed({"specplug": {"references": "a", "prediction": PREDICTION}}, max_references=2)
    assert len(references) == 2
    for field in ("corpora", "documents"):
        most = getattr(Limits(), f"max_{field}")
        parsed({"specplug": {field: [str(number) for number in range(most)]}})
        parsed({"specplug": {field: "\u4e2d" * 256}})


def test_thresholds_are_numbers_or_the_servers_names():
    for given, expected in (("prose", 0.3), (0.7, 0.7), (1, 1.0), (None, None)):
        options, _, _ = parsed({"specplug": {"acceptance_threshold": given, "verifier": "typical"}})
        assert options.acceptance_threshold == expected
    with pytest.raises(RequestError, match="this server's verifier takes no threshold"):
        parser_of(verifier="reference", acceptance_thresholds={}).parse_fields({"specplug_acceptance_threshold": 0.5})


def test_all_wrong_fields_are_reported_at_once():
    message = refusal({"specplug": {"enabled": 1, "refs": "a", "references": [{"token_ids": [None]}]}})
    assert message.startswith("3 request fields are wrong:\n")
    assert message.count("\n") == 3


def test_of_many_unknown_fields_some_are_named(monkeypatch):
    calls = []
    monkeypatch.setattr(input_errors, "suggest", lambda *given: calls.append(given) or "")
    message = refusal({"specplug": {f"field {number}": number for number in range(MAX_KEYS)}})
    assert f"{MAX_KEYS} request fields are wrong" in message
    assert "'field 0'" in message
    assert message.endswith(f"... and {MAX_KEYS - 20} more")
    assert len(calls) == 20


def test_a_prediction_in_too_many_parts_is_refused_at_once():
    part = {"type": "text", "text": "a"}
    _, (reference,), _ = parsed({"specplug": {"prediction": {"type": "content", "content": [part] * MAX_PARTS}}})
    assert len(reference.token_ids) == MAX_PARTS
    message = refusal({"specplug": {"prediction": {"type": "content", "content": [part] * (MAX_PARTS + 1)}}})
    assert "'prediction.content'; found [{'type'" in message
    assert f"expected at most {MAX_PARTS} parts" in message


ENGINE_DRAFTS = parser_of(engine_drafts=True)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"references": "a text"}, "the engine's own drafter, which reads no texts of requests"),
        ({"prediction": {"type": "content", "content": "a text"}}, "reads no texts of requests"),
        ({"documents": "name"}, "reads no texts of requests"),
        ({"corpora": "name"}, "reads no texts of requests"),
        ({"proposer": "ngram"}, "'proposer'"),
    ],
)
def test_what_the_engines_own_drafter_does_not_read_is_refused(fields, refused):
    with pytest.raises(RequestError, match=refused):
        ENGINE_DRAFTS.parse_fields({"specplug": fields})


def test_limits_apply_to_the_engines_own_drafter_and_openais_prediction_is_ignored():
    for fields, cap in (({"num_speculative_tokens": 9}, 5), ({"enabled": False}, 0)):
        assert wire.decode(ENGINE_DRAFTS.parse_fields({"specplug": fields}))[0].cap == cap
    assert ENGINE_DRAFTS.with_prediction({"other": 1}, {"type": "content", "content": "text"}) == {"other": 1}
