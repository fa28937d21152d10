"""The parser of request fields on a server whose engine drafts with its own drafter."""

from __future__ import annotations

import pytest

from specplug.errors import RequestError
from specplug.requests import wire
from specplug.requests.parser import FieldParser
from specplug.settings.sources import load_settings
from specplug.text.request_tokenizer import RequestTokenizer

TEXTS = [
    {"references": "a text"},
    {"prediction": {"type": "content", "content": "a text"}},
    {"documents": "name"},
    {"corpora": "name"},
]


@pytest.fixture
def parser():
    found = load_settings({"proposer": "engine", "num_speculative_tokens": 5}, env={}, engine_drafts=True)
    return FieldParser(found, 256, RequestTokenizer(Bytes))


class Bytes:
    def encode(self, text, add_special_tokens=False):
        return list(text.encode())


@pytest.mark.parametrize("fields", TEXTS, ids=lambda fields: next(iter(fields)))
def test_texts_to_draft_from_are_refused(parser, fields):
    with pytest.raises(RequestError, match="the engine's own drafter, which reads no texts of requests"):
        parser.parsed({"specplug": fields})


def test_another_proposer_is_refused(parser):
    with pytest.raises(RequestError, match="'proposer'"):
        parser.parsed({"specplug": {"proposer": "ngram"}})


def test_limits_are_parsed(parser):
    options = wire.decode(parser.parsed({"specplug": {"num_speculative_tokens": 9}}))[0]
    assert (options.cap, wire.decode(parser.parsed({"specplug": {"enabled": False}}))[0].cap) == (5, 0)


def test_openais_prediction_is_ignored(parser):
    assert parser.with_prediction({"other": 1}, {"type": "content", "content": "text"}) == {"other": 1}
