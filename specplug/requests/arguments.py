"""specplug's fields within a request's custom arguments, which the engine passes through unread.

The custom arguments are vLLM's `extra_args` (`vllm_xargs` over HTTP) and SGLang's `custom_params`.  `vllm_xargs`
accepts only strings, numbers and lists of them, so a request gives all fields as one JSON string under ``specplug``, or
single fields as ``specplug_<field>``.  Elsewhere ``specplug`` may also be a mapping.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import re
from collections.abc import Mapping
from typing import Any

from specplug.errors import RequestError, SpecplugError, quote, suggest
from specplug.input_errors import json_value, require_mapping
from specplug.requests.schema import RequestFields
from specplug.requests.wire import WIRE_KEY, is_encoded

_log = logging.getLogger("specplug")

PREFIX = f"{WIRE_KEY}_"
_FIELDS = tuple(RequestFields.model_fields)
_BOOLEANS: dict[object, bool] = {0: False, 1: True, "0": False, "1": True, "false": False, "true": True}
_MALFORMED = "malformed request fields"
_MAX_FIELD = 64
_MAX_COMPARED = 16  # keys of one request; comparing takes some microseconds of the event loop's time each
_MAX_WARNED = 32
_MAX_ITEMS = 10_000
_warned: set[object] = set()
_MAX_DEPTH = 8  # nesting levels that are inspected; valid fields have fewer
_LONG_FORM = {
    "references": re.compile(r'\s*(?:\[\s*)?\{\s*"(?:text|token_ids|name)"\s*:'),
    "documents": re.compile(r'\s*(?:\[\s*)?\{\s*"(?:name|corpus)"\s*:'),
}


def has_fields(extra_args: Mapping[str, Any] | None) -> bool:
    """Return whether a request has specplug fields that are not parsed yet."""
    if not extra_args:
        return False
    has_own = any(map(_is_ours, extra_args)) and not is_encoded(extra_args)
    for key in itertools.islice(extra_args, _MAX_COMPARED):
        if not _is_ours(key):
            _warn_of_near_miss(key)
    return has_own


def split(extra_args: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return specplug's fields, in the form that `parse_request_fields` takes, and the other arguments.

    Raises:
        RequestError: a key is unknown, a field is given twice, or the JSON is malformed.
    """
    ours = {key: value for key, value in extra_args.items() if _is_ours(key)}
    rest = {key: value for key, value in extra_args.items() if key not in ours}
    fields = _mapping(ours.pop(WIRE_KEY, None))
    for key, value in ours.items():
        name = key.removeprefix(PREFIX)
        if name not in _FIELDS:
            remedy = suggest(key, [PREFIX + field for field in _FIELDS])
            raise RequestError.build(f"unknown request field {quote(key)}", found=quote(value), remedy=remedy)
        if name in fields:
            raise _given_twice(name, f"{key!r}, and {name!r} inside {WIRE_KEY!r}")
        fields[name] = _value(name, value)
    return fields, rest


def with_prediction(extra_args: Mapping[str, Any] | None, prediction: object) -> dict[str, Any]:
    """Return the arguments with the request's own `prediction` field (OpenAI's) added to specplug's fields.

    Arguments that are already parsed are returned unchanged.  JSON in them is not decoded, which could take seconds:
    a prediction inside it is found later, by `split`.

    Raises:
        RequestError: the prediction is a text, or specplug's fields also hold one.
    """
    merged = dict(extra_args or {})
    if is_encoded(merged):
        return merged
    key = f"{PREFIX}prediction"
    if key in merged:
        raise _given_twice("prediction", f"the request's own 'prediction', and {key!r}")
    if isinstance(prediction, str):  # which `specplug_prediction` may be
        what = "bad value for request field 'prediction'"
        expected = "OpenAI's object with 'type' and 'content'"
        raise RequestError.build(what, found=quote(prediction), expected=expected)
    return {**merged, key: prediction}


def characters(extra_args: Mapping[str, Any]) -> int:
    """Return the approximate number of characters to parse, keys included, without decoding JSON strings.

    It runs on the event loop, so only `_MAX_ITEMS` entries of lists and objects are counted; valid fields have fewer.
    """
    ours = {key: value for key, value in extra_args.items() if _is_ours(key)}
    total = 0
    left = _MAX_ITEMS
    level: list[object] = [ours]
    for _ in range(_MAX_DEPTH):
        total = total + len(level)
        left = left - len(level)
        below: list[object] = []
        for value in level:
            if isinstance(value, str):
                total += len(value)
            elif isinstance(value, Mapping):
                below += itertools.islice(itertools.chain.from_iterable(value.items()), max(0, left - len(below)))
            elif isinstance(value, (list, tuple)) and value and not isinstance(value[0], int):
                below += itertools.islice(value, max(0, left - len(below)))
            elif hasattr(value, "__len__"):
                total += len(value)
        if not below:
            break
        level = below
    return total


def _mapping(value: object) -> dict[str, Any]:
    """Return the fields given together, as a mapping or as JSON; null means none."""
    if isinstance(value, str):
        value = json_value(value, RequestError, _MALFORMED, expected="a JSON object")
    return dict(require_mapping({} if value is None else value, RequestError, _MALFORMED))


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and (key == WIRE_KEY or key.startswith(PREFIX))


def _warn_of_near_miss(key: object) -> None:
    """Log once that a key which specplug ignores resembles one of its fields."""
    if key in _warned or len(_warned) >= _MAX_WARNED or not isinstance(key, str):
        return
    meant = _meant(key)
    if meant is not None:
        _warned.add(key)
        _log.warning("requests say %s, which is no field of specplug's; did they mean %r?", quote(key), meant)


def _meant(key: str) -> str | None:
    """Return the field whose name a key resembles, or None."""
    if key in _FIELDS:
        return PREFIX + key
    plain = re.sub("[^a-z]+", "_", key[:_MAX_FIELD].lower()).replace("spec_plug", WIRE_KEY)
    if len(key) > _MAX_FIELD or not plain.startswith("spec"):
        return None
    return next(iter(difflib.get_close_matches(plain, (WIRE_KEY, *(PREFIX + each for each in _FIELDS)), 1, 0.8)), None)


def _given_twice(name: str, found: str) -> SpecplugError:
    return RequestError.build(f"request field {name!r} is given twice", found=found)


def _value(name: str, value: Any) -> Any:
    """Convert a value that HTTP can carry to the field's own type; leave a bad value for the parser to refuse."""
    if name in ("enabled", "store"):
        plain = value.lower() if isinstance(value, str) else value
        return _BOOLEANS.get(plain, value) if isinstance(plain, (str, int, float)) else value
    if name == "num_speculative_tokens" and isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    if name == "prediction" and isinstance(value, str):
        return {"type": "content", "content": value}
    if isinstance(value, str) and name in _LONG_FORM and _LONG_FORM[name].match(value):
        expected = f"{name} as JSON; to give a text that begins like them, use the long form"
        return json_value(value, RequestError, _MALFORMED, expected=expected)
    if name == "references" and isinstance(value, (list, tuple)) and value and isinstance(value[0], (int, float)):
        return {"token_ids": value}  # a list of ids rather than of texts
    return value
