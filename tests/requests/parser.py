"""A server's parser of request fields, for tests: a byte is a token."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from specplug.errors import RequestError
from specplug.requests import wire
from specplug.requests.parsing import FieldParser
from specplug.requests.schema import RequestFields
from specplug.settings.sources import load_settings
from specplug.text.request_tokenizer import RequestTokenizer
from specplug.types.request import Reference, RequestOptions

VOCAB = 256
FIELDS = tuple(RequestFields.model_fields)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)
json_texts = json_values.map(json.dumps)


class Bytes:
    """A tokenizer that remembers how each text starts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __deepcopy__(self, memo: Any) -> Bytes:
        return self

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.seen.append(text[:2])
        return list(text.encode())


def parser_of(tokenizer: Any = None, engine_drafts: bool = False, **settings: Any) -> FieldParser:
    """Return the parser of a server with `ngram`, `hybrid` and a lossy verifier, or with the engine's own drafter."""
    ours = {"extra_proposers": ["hybrid"], "verifier": "typical", "acceptance_thresholds": {"prose": 0.3}}
    chosen = {"proposer": "engine", "num_speculative_tokens": 5} if engine_drafts else {**ours, **settings}
    found = load_settings(chosen, env={}, engine_drafts=engine_drafts)
    return FieldParser(found, VOCAB, RequestTokenizer(lambda: tokenizer or Bytes()))


@functools.cache
def limited(**limits: int) -> FieldParser:
    """Return a parser with these limits."""
    return parser_of(limits=limits, num_speculative_tokens=256)


def parsed(extra_args: dict[str, Any], **limits: int) -> tuple[RequestOptions, tuple[Reference, ...], str | None]:
    """Return what the scheduler receives of a request with these arguments."""
    return wire.decode(limited(**limits).parse_fields(extra_args))


def refusal(extra_args: dict[str, Any], **limits: int) -> str:
    """Return the message with which a request is refused."""
    with pytest.raises(RequestError) as caught:
        limited(**limits).parse_fields(extra_args)
    return str(caught.value)


def texts_of(references: tuple[Reference, ...]) -> list[tuple[str, bytes]]:
    """Return references' names and texts."""
    return [(reference.name, bytes(reference.token_ids.tolist())) for reference in references]
