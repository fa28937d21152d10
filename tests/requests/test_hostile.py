"""Hostile fields are refused soon and in few words, and the event loop reads no more of a request than it has to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from specplug.errors import RequestError
from specplug.requests import arguments
from specplug.requests.clients import isolation_key
from specplug.requests.parsing import INLINE_CHARACTERS
from specplug.text.request_tokenizer import RequestTokenizer
from tests.requests.parser import FIELDS, Bytes, limited, refusal

LIMITS = {"max_reference_tokens": 100_000}
LONG = "x" * (4 << 20)
MANY = 200_000
SECONDS = 1.0  # of this process; each attack took 3 to 20 times as long before it was refused early
MANY_KEYS = {str(number): 1 for number in range(MANY)}
RARE = "\U00010330" * 1_500_000  # of rare characters each can be four tokens or more

PART = {"type": "text", "text": "a"}
REFUSED: dict[str, dict[str, Any]] = {
    "a long unknown key": {f"specplug_{LONG}": 1},
    "long unknown keys": {"specplug": {f"{LONG}{number}": 1 for number in range(4)}},
    "many unknown keys": {"specplug": MANY_KEYS},
    "many unknown keys of a reference": {"specplug": {"references": [MANY_KEYS]}},
    "many unknown keys of a prediction": {"specplug_prediction": MANY_KEYS},
    "many unknown keys of a part": {"specplug_prediction": {"type": "content", "content": [PART, MANY_KEYS]}},
    "a long proposer": {"specplug_proposer": LONG},
    "a long verifier": {"specplug_verifier": LONG},
    "a long tenant": {"specplug_tenant": LONG},
    "a long name of a reference": {"specplug": {"references": [{"text": "a", "name": LONG}]}},
    "a long name of a document": {"specplug_documents": LONG},
    "a long choice": {"specplug_prediction": {"type": LONG, "content": "a"}},
    "more JSON than can be within the limits": {"specplug": '{"references": [' + "{}," * 3_000_000 + "{}]}"},
    "a key twice": {"specplug": f'{{"{LONG}": 1, "{LONG}": 2}}'},
    "text of too many tokens": {"specplug_references": RARE},
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_fields_are_refused_soon_and_in_few_words(name: str) -> None:
    parser = limited(**LIMITS)
    begin = time.process_time()
    with pytest.raises(RequestError) as refused:
        parser.parse_fields(REFUSED[name])
    assert time.process_time() - begin < SECONDS
    assert len(str(refused.value)) < 2000
    assert "\n" not in str(refused.value).replace("\n  ", "")


EVENT_LOOP: dict[str, Callable[[], object]] = {
    "many keys like fields": lambda: arguments.has_fields({f"spec{number:07}": 1 for number in range(MANY)}),
    "a long key like a field": lambda: arguments.has_fields({"spec" + "X-" * len(LONG): 1}),
    "many short texts": lambda: arguments.characters({"specplug_references": ["a"] * 2_000_000}),
    "many empty objects": lambda: arguments.characters({"specplug_references": [{}] * 2_000_000}),
    "a prediction beside JSON": lambda: arguments.with_prediction({"specplug": "[" + "{}," * 3_000_000 + "{}]"}, {}),
}


@pytest.mark.parametrize("name", EVENT_LOOP)
def test_the_event_loop_reads_no_more_than_it_has_to(name: str) -> None:
    """What a front end does before it hands a request to a thread; 2 million items would take it a second."""
    begin = time.process_time()
    EVENT_LOOP[name]()
    assert time.process_time() - begin < SECONDS / 2


@pytest.mark.parametrize("name", ["a long unknown key", "a long name of a reference"])
def test_keys_and_names_count_as_text_to_parse(name: str) -> None:
    """Otherwise the event loop itself would parse them."""
    assert arguments.characters(REFUSED[name]) > INLINE_CHARACTERS


@pytest.mark.parametrize("text", ["\n2026-01-01 ERROR forged", "\x1b[2J", "\u2028", "\ud800"])
def test_messages_and_logs_show_control_characters_escaped(text: str, caplog: Any) -> None:
    arguments.has_fields({f"specplug{text}": 1})
    assert text not in caplog.text
    for fields in ({f"specplug_{text}": 1}, {"specplug_proposer": text}, {"specplug": {text: text}}):
        assert text not in refusal(fields)


def test_a_salt_of_any_length_gives_a_short_key() -> None:
    """Proposers keep the keys of a few thousand owners."""
    assert len(isolation_key(None, (LONG,))) == len(isolation_key("a", client="b")) == 64


def test_text_of_many_tokens_is_tokenized_no_further_than_the_limit() -> None:
    """Texts are admitted by their characters."""
    begin = time.process_time()
    assert 100_000 < len(RequestTokenizer(Bytes)(RARE, max_tokens=100_000)) < 400_000
    assert time.process_time() - begin < SECONDS
    assert refusal(REFUSED["text of too many tokens"], **LIMITS).startswith("references of the request are too large")
    assert refusal(REFUSED["more JSON than can be within the limits"], **LIMITS).startswith(
        "request fields are too large"
    )


def nested(depth: int, kind: type) -> object:
    """Return lists in lists, or mappings in mappings."""
    value: object = "x"
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("field", [*FIELDS, "unknown"])
def test_deep_nesting_is_refused(field: str, kind: type) -> None:
    for depth in (50, 2000):
        assert len(refusal({"specplug": {field: nested(depth, kind)}})) < 2000
