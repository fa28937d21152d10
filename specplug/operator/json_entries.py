"""Large JSON, decoded one entry at a time: `json.loads` of tens of megabytes keeps all other threads waiting."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_Read = Callable[[int], tuple[Any, int]]

_SPACE = re.compile(r"[ \t\n\r]*")


def loads(body: bytes | bytearray, key: str, pairs: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    """Return what `json.loads` does, of UTF-8.

    Args:
        body: the JSON.
        key: of the outermost object; if a list stands there, its entries are decoded one by one.
        pairs: makes an object of its keys and values, see `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: it is no JSON.
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
    """Return what stands between the bracket at `at` and the closing one, and where that ends."""
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
    """Return where the space from `at` on ends."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
