"""The fields of one request: what is accepted, what is refused, and that nothing large is tokenised first."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import ContractError, RequestError
from specplug.requests.parsing import CHARACTERS_PER_TOKEN, parse_request_fields
from specplug.requests.schema import MOST_KEYS, MOST_PARTS, RequestFields, in_vocabulary, parsed_ids
from specplug.settings import Limits, mistakes
from specplug.types.request import Reference, RequestOptions, StoredDocument

VOCAB = 256


def tokenize(text: str) -> list[int]:
    return list(text.encode())


def must_not_run(text: str) -> list[int]:
    raise AssertionError("tokenised before its size was checked")


def parse(raw, *, tokenize=tokenize, proposers=None, **limits):
    return parse_request_fields(
        raw,
        tokenize=tokenize,
        vocab_size=VOCAB,
        limits=Limits(**limits),
        proposers=proposers,
        thresholds={"prose": 0.3},
    )


def refusal(raw, **kwargs) -> str:
    with pytest.raises(RequestError) as caught:
        parse(raw, **kwargs)
    return str(caught.value)


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


@pytest.mark.parametrize("raw", [None, {}, "{}", "null"])
def test_a_request_without_fields_gets_the_defaults(raw):
    assert parse(raw) == (RequestOptions(), (), None)


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
    assert set(raw) == set(RequestFields.model_fields)
    expected = (
        RequestOptions(
            enabled=False,
            num_speculative_tokens=0,
            proposer="ngram",
            verifier="typical",
            acceptance_threshold=0.3,
            store=False,
            group="epoch 3, prompt 7",
            corpora=("notes", "code"),
            documents=(StoredDocument("a.txt", "notes"), StoredDocument("b.txt")),
        ),
        (
            Reference.of(ids("cd"), "prediction"),
            Reference.of(ids("ab"), "first"),
            Reference.of((7, 255), "reference 2"),
        ),
        "acme",
    )
    assert parse(raw) == expected
    assert parse(json.dumps(raw)) == expected


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ("ab", [("reference 1", ids("ab"))]),
        (["ab", "c"], [("reference 1", ids("ab")), ("reference 2", ids("c"))]),
        (("ab",), [("reference 1", ids("ab"))]),
        ({"text": "ab", "name": "n"}, [("n", ids("ab"))]),
        (["ab", {"token_ids": [1]}], [("reference 1", ids("ab")), ("reference 2", (1,))]),
        (["", {"token_ids": []}, "b"], [("reference 3", ids("b"))]),
        ([], []),
        (None, []),
    ],
)
def test_references_come_in_short_and_long_forms(references, expected):
    _, found, _ = parse({"references": references})
    assert [(reference.name, tuple(reference.token_ids)) for reference in found] == expected


@pytest.mark.parametrize(
    "prediction",
    [
        {"type": "content", "content": "abc"},
        {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]},
    ],
    ids=["string", "parts"],
)
def test_predicted_output_is_a_reference(prediction):
    _, found, _ = parse({"prediction": prediction})
    assert found == (Reference.of(ids("abc"), "prediction"),)


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
        (
            "documents",
            ("a", {"name": "a", "corpus": "c"}, {"name": "a"}, {"corpus": "d", "name": "a"}),
            (StoredDocument("a"), StoredDocument("a", "c"), StoredDocument("a", "d")),
        ),
        ("documents", None, ()),
    ],
)
def test_names_come_in_short_and_long_forms_and_stay_in_order_each_once(field, given, expected):
    options, references, _ = parse({field: given})
    assert options == RequestOptions(**{field: expected})
    assert hash(options) == hash(RequestOptions(**{field: expected}))
    assert references == ()


@pytest.mark.parametrize(("field", "limit"), [("corpora", "max_corpora"), ("documents", "max_documents")])
def test_names_are_counted_before_they_are_read_and_have_a_longest(field: str, limit: str):
    message = refusal({field: [3] * 3}, **{limit: 2})
    assert message.startswith(f"too many {field} in request field {field!r}; found 3; expected at most 2.")
    assert f"limits.{limit}" in message
    assert "found 1;" in refusal({field: "a"}, **{limit: 0})
    parse({field: [str(number) for number in range(getattr(Limits(), limit))]})
    parse({field: "\u4e2d" * 256})
    assert "at most 256 characters" in refusal({field: "a" * 257})


@pytest.mark.parametrize(
    ("raw", "fragments"),
    [
        ('{"enabled"', ["malformed request fields", "expected a JSON object"]),
        ('{"store": true, "store": true}', ["malformed request fields", "found key 'store' twice"]),
        ("[" * 100_000, ["malformed request fields", "expected a JSON object"]),
        ("[1]", ["malformed request fields", "found [1]", "expected a JSON object"]),
        ([1], ["malformed request fields", "found [1]", "expected a JSON object"]),
        ({"refrences": "a"}, ["unknown request field 'refrences'", "found 'a'", "Did you mean 'references'?"]),
        ({"enabled": "yes"}, ["'enabled'", "found 'yes'", "expected a valid boolean"]),
        ({"enabled": 1}, ["'enabled'", "found 1", "expected a valid boolean"]),
        ({"store": None}, ["'store'", "expected a valid boolean"]),
        ({"num_speculative_tokens": 257}, ["'num_speculative_tokens'", "found 257", "less than or equal to 256"]),
        ({"num_speculative_tokens": -1}, ["'num_speculative_tokens'", "found -1", "greater than or equal to 0"]),
        ({"num_speculative_tokens": True}, ["'num_speculative_tokens'", "found True", "a valid integer"]),
        ({"tenant": ""}, ["'tenant'", "at least 1 character"]),
        ({"tenant": 3}, ["'tenant'", "found 3", "a valid string"]),
        ({"references": 3}, ["'references.0'", "found 3", "expected a mapping"]),
        ({"references": ["a", None]}, ["'references.1'", "expected a mapping"]),
        (
            {"references": [{"txt": "a"}]},
            ["unknown request field 'references.0.txt'", "Did you mean 'references.0.text'?"],
        ),
        ({"references": [{}]}, ["'references.0'", "expected either 'text' or 'token_ids'"]),
        ({"references": [{"text": "a", "token_ids": [1]}]}, ["expected either 'text' or 'token_ids'"]),
        ({"references": [{"text": 3}]}, ["'references.0.text'", "found 3", "expected a string"]),
        ({"references": [{"token_ids": 7}]}, ["'references.0.token_ids'", "found 7", "expected a list of token ids"]),
        ({"references": [{"token_ids": "a!"}]}, ["'references.0.token_ids'", "found 'a!'", "expected base64"]),
        ({"references": [{"token_ids": "é"}]}, ["'references.0.token_ids'", "expected base64"]),
        ({"references": [{"token_ids": "AAAA"}]}, ["'references.0.token_ids'", "3 bytes are no multiple of 4"]),
        ({"references": [{"token_ids": [10**30]}]}, ["'references.0.token_ids'", f"entry 0 is {10**30}"]),
        ({"references": [{"token_ids": [1, "2"]}]}, ["'references.0.token_ids'", "entry 1 is '2'"]),
        ({"references": [{"token_ids": [1, True]}]}, ["'references.0.token_ids'", "entry 1 is True"]),
        ({"references": [{"token_ids": [1.0]}]}, ["'references.0.token_ids'", "entry 0 is 1.0"]),
        ({"references": "a\ud800"}, ["'references.0.text'", "character 1 is a lone surrogate"]),
        ({"references": {"text": "a", "name": "\ud800"}}, ["'references.0.name'", "character 0 is a lone surrogate"]),
        ({"corpora": ""}, ["'corpora.0'", "at least 1 character"]),
        ({"corpora": ["a", 3]}, ["'corpora.1'", "found 3", "a valid string"]),
        ({"corpora": {"name": "a"}}, ["'corpora.0'", "a valid string"]),
        ({"corpora": "a\ud800"}, ["'corpora.0'", "unicode"]),
        ({"documents": ["a", ""]}, ["'documents.1.name'", "at least 1 character"]),
        ({"documents": 3}, ["'documents.0'", "found 3", "expected a mapping"]),
        ({"documents": {"corpus": "a"}}, ["'documents.0.name' is missing"]),
        ({"documents": {"name": "a", "corpus": ""}}, ["'documents.0.corpus'", "at least 1 character"]),
        (
            {"documents": {"name": "a", "copus": "b"}},
            ["unknown request field 'documents.0.copus'", "Did you mean 'documents.0.corpus'?"],
        ),
        (
            {"prediction": 5},
            ["'prediction'", "found 5", "expected a text as 'specplug_prediction', or OpenAI's"],
        ),
        ({"prediction": "abc"}, ["'prediction'", "found 'abc'", "or OpenAI's object with 'type' and 'content'"]),
        ({"prediction": {"type": "text", "content": "a"}}, ["'prediction.type'", "expected 'content'"]),
        ({"prediction": {"type": "content"}}, ["'prediction.content' is missing"]),
        (
            {"prediction": {"type": "content", "content": [{"type": "text"}]}},
            ["'prediction.content.0.text' is missing"],
        ),
    ],
)
def test_wrong_fields_are_refused_with_key_value_and_expectation(raw, fragments: list[str]):
    message = refusal(raw)
    assert [fragment for fragment in fragments if fragment not in message] == []
    assert "\n" not in message


def test_all_wrong_fields_are_reported_at_once():
    message = refusal({"enabled": 1, "refs": "a", "references": [{"token_ids": [None]}]})
    assert message.startswith("3 request fields are wrong:\n")
    assert message.count("\n") == 3


@pytest.mark.parametrize(("token", "entry"), [(-1, 1), (VOCAB, 1), (2**40, 1)])
def test_ids_outside_the_vocabulary_are_refused(token: int, entry: int):
    message = refusal({"references": ["a", {"token_ids": [0, token]}]})
    assert "'references.1'" in message
    assert f"found {token} as entry {entry}" in message
    assert "expected 0 to 255" in message


def test_too_many_references_are_refused_unread():
    message = refusal({"references": [3] * 3}, max_references=2, tokenize=must_not_run)
    assert "found 3, the prediction included; expected at most 2" in message
    assert "limits.max_references" in message
    prediction = {"type": "content", "content": "c"}
    assert len(parse({"references": "a", "prediction": prediction}, max_references=2)[1]) == 2
    assert "found 2" in refusal({"references": "a", "prediction": prediction}, max_references=1)
    assert "found 1" in refusal({"references": "a"}, max_references=0)


def test_too_many_tokens_are_refused_before_anything_is_tokenised():
    message = refusal(
        {"references": ["ab", {"token_ids": [1, 2]}, {"token_ids": [3]}]}, max_reference_tokens=2, tokenize=must_not_run
    )
    assert "found 3 tokens; expected at most 2 tokens in all" in message
    assert "limits.max_reference_tokens" in message


def test_too_many_characters_are_refused_before_anything_is_tokenised():
    spaces = " " * (2 * CHARACTERS_PER_TOKEN)
    message = refusal({"references": [{"token_ids": [1]}, spaces, "."]}, max_reference_tokens=3, tokenize=must_not_run)
    assert f"found {len(spaces) + 1} characters and 1 tokens; expected at most 3 tokens in all" in message
    _, references, _ = parse(
        {"references": [{"token_ids": [1]}, spaces]}, max_reference_tokens=3, tokenize=lambda text: [7, 8]
    )
    assert [reference.token_ids.tolist() for reference in references] == [[1], [7, 8]]


def test_token_limit_holds_for_all_references_together():
    assert len(parse({"references": ["ab", "cd"]}, max_reference_tokens=4)[1]) == 2
    assert "found 5 tokens up to 'references.1'" in refusal({"references": ["ab", "cde"]}, max_reference_tokens=4)


def test_a_proposer_that_is_not_loaded_is_refused_with_the_nearest_name():
    assert parse({"proposer": "ngram"}, proposers=("ngram", "hybrid"))[0].proposer == "ngram"
    assert parse({}, proposers=("ngram",))[0].proposer is None
    message = refusal({"proposer": "ngarm"}, proposers=("ngram", "hybrid"))
    assert message.startswith("request field 'proposer': this server has not loaded the proposer; found 'ngarm'")
    assert "Did you mean 'ngram'?" in message


def packed(tokens: list[int]) -> str:
    return base64.b64encode(np.array(tokens, dtype="<i4").tobytes()).decode()


@pytest.mark.parametrize("count", [0, 1, 2, 3, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 50_000])
def test_ids_arrive_in_every_form_and_size(count: int):
    tokens = [index * 7919 % VOCAB for index in range(count)]
    for form in (tokens, tuple(tokens), packed(tokens), np.array(tokens, dtype=np.uint16)):
        _, references, _ = parse({"references": [{"token_ids": form}, "a"]})
        assert references[:-1] == ((Reference.of(tokens, "reference 1"),) if tokens else ())


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), st.integers(1, 2**31))
def test_ids_are_converted_and_checked_as_plain_python_would(tokens: list[int], vocab_size: int):
    for form in (tokens, packed(tokens)):
        found = parsed_ids(form)
        assert found.tolist() == tokens
        wrong = [index for index, token in enumerate(tokens) if not 0 <= token < vocab_size]
        if wrong:
            with pytest.raises(RequestError, match=f"found {tokens[wrong[0]]} as entry {wrong[0]};"):
                in_vocabulary("references.0", found, vocab_size)
        else:
            checked = in_vocabulary("references.0", found, vocab_size)
            assert (checked.dtype, checked.tolist()) == (np.int32, tokens)


@pytest.mark.parametrize("place", [0, 16_384 * 4 - 4, 16_384 * 4])
def test_base64_is_checked_to_its_end(place: int):
    text = packed(list(range(30_000)))
    for wrong in ("=", "!", " "):
        with pytest.raises(ValueError, match="base64 of little-endian 32-bit integers"):
            parsed_ids(text[:place] + wrong + text[place + 1 :])


def test_a_bad_entry_in_the_middle_of_many_is_named():
    tokens: list[object] = [1] * 40_000
    tokens[30_000] = True
    message = refusal({"references": [{"token_ids": tokens}]})
    assert "entry 30000 is True" in message
    assert len(message) < 300


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8))
def test_texts_arrive_whole_and_in_order(texts: list[str]):
    _, references, _ = parse({"references": texts})
    assert [bytes(reference.token_ids.tolist()).decode() for reference in references] == [
        text.replace("\r\n", "\n").replace("\xa0", " ") for text in texts if text
    ]


def test_line_ends_and_spaces_are_those_that_models_write():
    _, references, _ = parse({"references": ["a\r\nb\u00a0c"], "prediction": {"type": "content", "content": "d\r\n"}})
    assert [bytes(reference.token_ids.tolist()) for reference in references] == [b"d\n", b"a\nb c"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(sorted(RequestFields.model_fields)) | st.text(max_size=4), json_values, max_size=3)
)
def test_whatever_comes_over_http_is_parsed_or_refused(raw):
    """Nothing but a `RequestError` may leave: any other exception would be the server's fault, not the client's."""
    try:
        options, references, _ = parse(raw)
    except RequestError:
        return
    assert set(raw) <= set(RequestFields.model_fields)
    assert options.enabled is raw.get("enabled", True)
    assert all(0 <= token < VOCAB for reference in references for token in reference.token_ids.tolist())


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


def nested(depth: int, kind: type) -> object:
    """Return lists in lists, or mappings in mappings."""
    value: object = "x"
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("field", [*RequestFields.model_fields, "unknown"])
def test_deep_nesting_is_refused(field, kind):
    for depth in (50, 2000):
        assert len(refusal({field: nested(depth, kind)})) < 2000


def test_a_prediction_in_too_many_parts_is_refused_at_once():
    part = {"type": "text", "text": "a"}
    most = parse({"prediction": {"type": "content", "content": [part] * MOST_PARTS}})
    assert len(most[1][0].token_ids) == MOST_PARTS
    message = refusal({"prediction": {"type": "content", "content": [part] * (MOST_PARTS + 1)}})
    assert "'prediction.content'; found [{'type'" in message
    assert f"expected at most {MOST_PARTS} parts" in message


def test_of_many_unknown_fields_some_are_named(monkeypatch):
    calls = []
    monkeypatch.setattr(mistakes, "suggest", lambda *given: calls.append(given) or "")
    message = refusal({f"field {number}": number for number in range(MOST_KEYS)})
    assert f"{MOST_KEYS} request fields are wrong" in message
    assert "'field 0'" in message
    assert message.endswith(f"... and {MOST_KEYS - 20} more")
    assert len(calls) == 20
