"""Documents from JSON lines: one object per line, with a text or its token ids, and a name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.corpus.names import MAX_DOCUMENT_NAME, check_name
from specplug.errors import CorpusError, SpecplugError

_NAMES = ("name", "id")
_NONE = np.empty(0, dtype=np.int32)


class Content(NamedTuple):
    """A document read from a source.

    Attributes:
        name: its name.
        text: its text; None if only token ids were given.
        token_ids: [n] int32 if the text is None.
    """

    name: str
    text: str | None
    token_ids: npt.NDArray[np.int32] = _NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The names of the objects' fields.

    Attributes:
        text: the field of the text.
        token_ids: the field of token ids, which take precedence if an object has both.
        name: the field of the name, a string or a whole number; None: ``name``, or else ``id``.
        vocab_size: ids must be below this; None: any int32.
    """

    text: str = "text"
    token_ids: str = "token_ids"
    name: str | None = None
    vocab_size: int | None = None


def contents(
    lines: Iterable[bytes], where: str, default: str, fields: Fields, bad: Callable[[SpecplugError], None]
) -> Iterator[Content]:
    """Yield the documents; empty lines are skipped.

    Args:
        lines: the lines of a binary file.
        where: the file, for messages.
        default: the name of a document without one, followed by its line number.
        fields: the names of the fields.
        bad: called with the error of each unreadable line; may raise.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _content(line, f"{where}, line {number}", f"{default}:{number}", fields)
        except SpecplugError as error:
            bad(error)


def not_utf_8(where: str, found: str) -> SpecplugError:
    """Return the error for bytes that are not UTF-8."""
    return CorpusError.build(
        "not UTF-8 text", who=where, found=found, remedy="Convert it, leave it out, or skip what is bad (--skip-bad)"
    )


def named(name: str, where: str) -> str:
    """Return a document's name if it is valid.

    Raises:
        CorpusError: it is invalid; the message says where it is from.
    """
    try:
        return check_name("document", name, most=MAX_DOCUMENT_NAME)
    except SpecplugError as error:
        raise CorpusError(f"{where}: {error}") from error


def _content(line: bytes, where: str, default: str, fields: Fields) -> Content:
    item = _object(line, where)
    name = named(_name(item, where, default, fields), where)
    ids, text = item.get(fields.token_ids), item.get(fields.text)
    if ids is not None:
        return Content(name, None, _token_ids(ids, where, fields))
    if not isinstance(text, str):
        found = f"only {', '.join(map(repr, item)) or 'nothing'}" if text is None else type(text).__name__
        expected = f"a string {fields.text!r}, or a list {fields.token_ids!r}"
        raise _wrong("no text", where, found, expected, "Name the field of the text if it is another")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong("no valid Unicode", where, f"half a surrogate at {error.start}", "characters") from error
    return Content(name, text)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        item = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf_8(where, f"byte {line[error.start]:#04x} at offset {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise _wrong("no JSON", where, str(error), "an object") from error
    if not isinstance(item, dict):
        raise _wrong("no JSON object", where, type(item).__name__, 'such as {"name": ..., "text": ...}')
    return item


def _name(item: dict[str, Any], where: str, default: str, fields: Fields) -> str:
    names = _NAMES if fields.name is None else (fields.name,)
    found = next((item[name] for name in names if item.get(name) is not None), None)
    if found is None and fields.name is None:
        return default
    if isinstance(found, (str, int)) and not isinstance(found, bool):
        return str(found)
    raise _wrong("no name", where, f"{names[-1]!r}: {found!r}"[:200], "a string or a whole number")


def _token_ids(ids: object, where: str, fields: Fields) -> npt.NDArray[np.int32]:
    limit = np.iinfo(np.int32).max if fields.vocab_size is None else fields.vocab_size
    if ids == []:
        return _NONE
    found = np.asarray(ids) if isinstance(ids, list) and all(type(each) is int for each in ids) else None
    if found is None or found.dtype.kind != "i":
        raise _wrong("wrong token ids", where, f"{ids!r:.60}", f"a list of whole numbers in [0, {limit})")
    if found.min() < 0 or found.max() >= limit:
        other = found.min() if found.min() < 0 else found.max()
        raise _wrong("not a token of this tokenizer", where, str(other), f"ids in [0, {limit})")
    return found.astype(np.int32)


def _wrong(what: str, where: str, found: str, expected: str, remedy: str | None = None) -> SpecplugError:
    return CorpusError.build(what, who=where, found=found, expected=expected, remedy=remedy)
