"""Decoder for large JSON that works one entry at a time; `json.loads` of tens of megabytes blocks all other threads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_Read = Callable[[int], tuple[Any, int]]

_SPACE = re.compile(r"[ \t\n\r]*")


def loads(body: bytes | bytearray, key: str, pairs: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    """Decode UTF-8 JSON with the result of `json.loads`.

    Args:
        body: the JSON.
        key: a key of the outermost object; if its value is a list, the entries are decoded one by one.
        pairs: builds an object from its keys and values, see `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: `body` is not JSON.
    """
    text = body.decode()
    decoder = json.JSONDecoder(object_pairs_hook=pairs)

    def value(at: int) -> tuple[Any, int]:
        return decoder.raw_decode(text, at)

    def entries(at: int) -> tuple[list[Any], int]:
        return _listed(text, at, "]", value)

    def member(at: int) -> tuple[tuple[str, Any], int]:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, end = value(at)
        at = _space(text, end)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        at = _space(text, at + 1)
        found, end = entries(at) if name == key and text[at : at + 1] == "[" else value(at)
        return (name, found), end

    at = _space(text, 0)
    if text[at : at + 1] == "{":
        members, end = _listed(text, at, "}", member)
        found = pairs(members)
    else:
        found, end = value(at)
    if _space(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, _space(text, end))
    return found


def _listed(text: str, at: int, close: str, read: _Read) -> tuple[list[Any], int]:
    """Return the items between the bracket at `at` and the closing one, and the offset after it."""
    found: list[Any] = []
    at = _space(text, at + 1)
    if text[at : at + 1] == close:
        return found, at + 1
    while True:
        entry, end = read(at)
        found.append(entry)
        at = _space(text, end)
        if text[at : at + 1] == close:
            return found, at + 1
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    """Return the offset after the whitespace at `at`."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
