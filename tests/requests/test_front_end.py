"""The parser: hostile fields are refused soon and in few words; and a server whose engine drafts itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from specplug.errors import RequestError
from specplug.requests import arguments, wire
from specplug.requests.clients import isolation_key
from specplug.requests.front_end import INLINE_CHARACTERS, FieldParser
from specplug.settings.sources import load_settings
from specplug.text.request_tokenizer import RequestTokenizer

LONG = "x" * (4 << 20)
MANY = 200_000
SECONDS = 1.0  # of this process; each attack took 3 to 20 times as long before it was refused early

PART = {"type": "text", "text": "a"}
REFUSED: dict[str, dict[str, Any]] = {
    "a long unknown key": {f"specplug_{LONG}": 1},
    "long unknown keys": {"specplug": {f"{LONG}{number}": 1 for number in range(4)}},
    "many unknown keys": {"specplug": {str(number): 1 for number in range(MANY)}},
    "many unknown keys of a reference": {"specplug": {"references": [{str(number): 1 for number in range(MANY)}]}},
    "many unknown keys of a prediction": {"specplug_prediction": {str(number): 1 for number in range(MANY)}},
    "many unknown keys of a part": {
        "specplug_prediction": {"type": "content", "content": [PART, {str(number): 1 for number in range(MANY)}]}
    },
    "a long proposer": {"specplug_proposer": LONG},
    "a long verifier": {"specplug_verifier": LONG},
    "a long tenant": {"specplug_tenant": LONG},
    "a long name of a reference": {"specplug": {"references": [{"text": "a", "name": LONG}]}},
    "a long name of a document": {"specplug_documents": LONG},
    "a long choice": {"specplug_prediction": {"type": LONG, "content": "a"}},
    "more JSON than can be within the limits": {"specplug": '{"references": [' + "{}," * 3_000_000 + "{}]}"},
    "a key twice": {"specplug": f'{{"{LONG}": 1, "{LONG}": 2}}'},
}
EVENT_LOOP: dict[str, Callable[[], object]] = {
    "many keys like fields": lambda: arguments.are_given({f"spec{number:07}": 1 for number in range(MANY)}),
    "a long key like a field": lambda: arguments.are_given({"spec" + "X-" * len(LONG): 1}),
    "many short texts": lambda: arguments.characters({"specplug_references": ["a"] * 2_000_000}),
    "many empty objects": lambda: arguments.characters({"specplug_references": [{}] * 2_000_000}),
    "a prediction beside JSON": lambda: arguments.with_prediction({"specplug": "[" + "{}," * 3_000_000 + "{}]"}, {}),
}


class Bytes:
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())


@pytest.fixture(scope="module")
def parser() -> FieldParser:
    limits = {"max_reference_tokens": 100_000}
    return FieldParser(load_settings({"limits": limits}, env={}), 256, RequestTokenizer(Bytes))


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_fields_are_refused_soon_and_in_few_words(parser: FieldParser, name: str) -> None:
    begin = time.process_time()
    with pytest.raises(RequestError) as refused:
        parser.parsed(REFUSED[name])
    assert time.process_time() - begin < SECONDS
    assert len(str(refused.value)) < 2000
    assert "\n" not in str(refused.value).replace("\n  ", "")


@pytest.mark.parametrize("name", EVENT_LOOP)
def test_the_event_loop_reads_no_more_than_it_has_to(name: str) -> None:
    """What a front end does before it hands a request to a thread; 2 million items would take it a second."""
    made = EVENT_LOOP[name]
    begin = time.process_time()
    made()
    assert time.process_time() - begin < SECONDS / 2


@pytest.mark.parametrize(
    "fields",
    [{"specplug_" + LONG: 1}, {"specplug": {"references": [{"text": "a", "name": LONG}]}}],
    ids=["key", "name"],
)
def test_keys_and_names_count_as_text_to_parse(fields: dict[str, Any]) -> None:
    """Otherwise the event loop itself would parse them."""
    assert arguments.characters(fields) > INLINE_CHARACTERS


@pytest.mark.parametrize("text", ["\n2026-01-01 ERROR forged", "\x1b[2J", "\u2028", "\ud800"])
def test_messages_and_logs_show_control_characters_escaped(parser: FieldParser, text: str, caplog: Any) -> None:
    arguments.are_given({f"specplug{text}": 1})
    assert text not in caplog.text
    for fields in ({f"specplug_{text}": 1}, {"specplug_proposer": text}, {"specplug": {text: text}}):
        with pytest.raises(RequestError) as refused:
            parser.parsed(fields)
        assert text not in str(refused.value)


def test_a_salt_of_any_length_gives_a_short_key() -> None:
    """Proposers keep the keys of a few thousand owners."""
    assert len(isolation_key(None, (LONG,))) == len(isolation_key("a", client="b")) == 64


def test_text_of_many_tokens_is_tokenized_no_further_than_the_limit(parser: FieldParser) -> None:
    """Of rare characters each can be four tokens or more, and texts are admitted by their characters."""
    tokenizer = RequestTokenizer(Bytes)
    begin = time.process_time()
    assert 100_000 < len(tokenizer("\U00010330" * 1_500_000, most=100_000)) < 400_000
    with pytest.raises(RequestError, match="references of the request are too large"):
        parser.parsed({"specplug_references": "\U00010330" * 1_500_000})
    assert time.process_time() - begin < SECONDS


TEXTS = [
    {"references": "a text"},
    {"prediction": {"type": "content", "content": "a text"}},
    {"documents": "name"},
    {"corpora": "name"},
]


@pytest.fixture
def engine_parser():
    found = load_settings({"proposer": "engine", "num_speculative_tokens": 5}, env={}, engine_drafts=True)
    return FieldParser(found, 256, RequestTokenizer(Bytes))


@pytest.mark.parametrize("fields", TEXTS, ids=lambda fields: next(iter(fields)))
def test_texts_to_draft_from_are_refused(engine_parser, fields):
    with pytest.raises(RequestError, match="the engine's own drafter, which reads no texts of requests"):
        engine_parser.parsed({"specplug": fields})


def test_another_proposer_is_refused(engine_parser):
    with pytest.raises(RequestError, match="'proposer'"):
        engine_parser.parsed({"specplug": {"proposer": "ngram"}})


def test_limits_are_parsed(engine_parser):
    options = wire.decode(engine_parser.parsed({"specplug": {"num_speculative_tokens": 9}}))[0]
    assert (options.cap, wire.decode(engine_parser.parsed({"specplug": {"enabled": False}}))[0].cap) == (5, 0)


def test_openais_prediction_is_ignored(engine_parser):
    assert engine_parser.with_prediction({"other": 1}, {"type": "content", "content": "text"}) == {"other": 1}
