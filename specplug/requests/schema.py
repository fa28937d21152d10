"""Schema of the fields of one request, as sent over HTTP: names, types, limits, short forms, and token ids.

Token ids are parsed piece by piece, so that a million of them do not block other threads.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from specplug.errors import RequestError
from specplug.settings.mistakes import shown
from specplug.settings.model import MAX_SPECULATIVE_TOKENS, Section

Ids = npt.NDArray[np.integer]

_PIECE = 1 << 14
_INT32 = np.dtype("<i4")

MAX_NAME = 256
"""Longest name of a tenant, a corpus or a document, in characters."""

MOST_KEYS = 32
"""Most keys of one object; `RequestFields` has fewer fields."""

MOST_PARTS = 1024
"""Most parts of a prediction."""


def as_list(value: object) -> list[object]:
    """Return the entries of a field that takes one entry or a list of entries; null means no entries."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [] if value is None else [value]


def parsed_ids(value: object) -> Ids:
    """Return [n] integers, not yet checked against a vocabulary.

    Other threads run between pieces; a conversion in one call would block them for tens of milliseconds.

    Args:
        value: a list or tuple of integers, an array of them, or base64 text of little-endian 32-bit integers.

    Raises:
        ValueError: `value` is none of these; the message says what was expected.
    """
    if isinstance(value, str):
        return _from_base64(value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        return value.copy()
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of token ids, or base64 of them as little-endian 32-bit integers")
    ids = np.empty(len(value), dtype=np.int64)
    for start in range(0, len(value), _PIECE):
        _convert(value[start : start + _PIECE], ids[start : start + _PIECE], start)
    return ids


def in_vocabulary(field: str, ids: Ids | Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    """Return [n] int32, all of them in [0, vocab_size).

    Raises:
        RequestError: an id is out of range; the message names the request field, the id and its index.
    """
    ids = np.asarray(ids) if len(ids) else np.empty(0, dtype=np.int32)
    wrong = (ids < 0) | (ids >= vocab_size)
    if wrong.any():
        index = int(wrong.argmax())
        raise RequestError.build(
            f"token id outside the vocabulary in request field {field!r}",
            found=f"{ids[index]} as entry {index}",
            expected=f"0 to {vocab_size - 1}",
            remedy="Send the text instead, or ids of the served model's tokenizer",
        )
    return ids.astype(np.int32, copy=False)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"valid Unicode; character {error.start} is a lone surrogate") from None
    return value


def _long_form(key: str) -> BeforeValidator:
    """Return a validator that expands the short forms, a text or a list of texts, to objects with this key."""
    return BeforeValidator(lambda value: [{key: each} if isinstance(each, str) else each for each in as_list(value)])


def _parts(value: object) -> object:
    if isinstance(value, (list, tuple)) and len(value) > MOST_PARTS:
        raise ValueError(f"at most {MOST_PARTS} parts")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _prediction(value: object) -> object:
    if value is None or isinstance(value, (Mapping, Prediction)):
        return value
    raise ValueError("a text as 'specplug_prediction', or OpenAI's object with 'type' and 'content'")


class Fields(Section):
    """A mapping that clients send; one with more keys than any needs is refused as a whole, not key by key."""

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: object) -> object:
        if isinstance(value, Mapping) and len(value) > MOST_KEYS:
            raise ValueError(f"at most {MOST_KEYS} keys")
        return value


Text = Annotated[str, PlainValidator(_text)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class ReferenceField(Fields):
    """One reference: its text or its token ids."""

    text: Text | None = Field(default=None, description="the text, tokenised by the server")
    token_ids: Annotated[Ids, PlainValidator(parsed_ids)] | None = Field(
        default=None, description="the text as ids of the target's vocabulary: a list, or base64 of 32-bit integers"
    )
    name: Text | None = Field(default=None, max_length=MAX_NAME, description="its name in traces")

    @model_validator(mode="after")
    def _either(self) -> ReferenceField:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("either 'text' or 'token_ids'")
        return self


class DocumentField(Fields):
    """One document of the server's corpora."""

    name: Name
    corpus: Name | None = Field(default=None, description="the corpus that holds it; null searches all of the tenant's")


class ContentPart(Fields):
    """One part of a prediction."""

    type: Literal["text"]
    text: Text


class Prediction(Fields):
    """OpenAI's predicted output: text that the answer will mostly repeat."""

    type: Literal["content"]
    content: Annotated[tuple[ContentPart, ...], BeforeValidator(_parts)] = Field(strict=False)


class RequestFields(Fields):
    """The fields of one request, as sent over HTTP."""

    enabled: bool = Field(default=True, description="false switches drafting off for this request")
    num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SPECULATIVE_TOKENS,
        description="most draft tokens per step for this request; it can lower the server's limit, not raise it",
    )
    proposer: str | None = Field(default=None, description="one of the server's extra proposers, to draft with instead")
    verifier: str | None = Field(
        default=None,
        description="the server's verifier, by name; one that is not lossless serves only requests that name it",
    )
    acceptance_threshold: float | Name | None = Field(
        default=None,
        description="strictness of the lossy verifier that the request names, in (0, 1] where 1 is lossless, or the "
        "name of one of the server's acceptance_thresholds",
    )
    references: Annotated[tuple[ReferenceField, ...], _long_form("text")] = Field(
        default=(), strict=False, description="texts that the answer is likely to copy from"
    )
    prediction: Annotated[Prediction | None, BeforeValidator(_prediction)] = Field(
        default=None, description="OpenAI's predicted output; treated as one more reference, searched first"
    )
    documents: Annotated[tuple[DocumentField, ...], _long_form("name")] = Field(
        default=(), strict=False, description="documents of the server's corpora that the answer is likely to copy from"
    )
    corpora: Annotated[tuple[Name, ...], BeforeValidator(as_list)] = Field(
        default=(), strict=False, description="the server's corpora to draft from first"
    )
    tenant: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_NAME,
        description="whose corpora to draft from; state kept across requests is separated by tenant",
    )
    store: bool = Field(
        default=True, description="false keeps the response out of any response memory, and apart from other requests"
    )
    group: Name | None = Field(
        default=None,
        description="requests of one group draft from each other's answers while they run; those on the same prompt "
        "are one without it",
    )


def _convert(piece: Sequence[Any], out: npt.NDArray[np.int64], start: int) -> None:
    if set(map(type, piece)) <= {int}:  # excludes bool, a subclass of int
        try:
            out[:] = piece
            return
        except OverflowError:
            pass
    index = next(i for i, token in enumerate(piece) if type(token) is not int or not -(2**63) <= token < 2**63)
    kind = "integers of 64 bits" if type(piece[index]) is int else "integers"
    raise ValueError(f"{kind} only; entry {start + index} is {shown(piece[index])}")


def _from_base64(text: str) -> Ids:
    pieces = []
    try:
        for start in range(0, len(text), 4 * _PIECE):
            pieces.append(binascii.a2b_base64(text[start : start + 4 * _PIECE], strict_mode=True))
    except ValueError as error:
        raise ValueError(f"base64 of little-endian 32-bit integers, or a list of token ids; {error}") from None
    if any(len(piece) < 3 * _PIECE for piece in pieces[:-1]):
        raise ValueError("base64 of little-endian 32-bit integers; padding stands before the end")
    data = b"".join(pieces)
    if len(data) % _INT32.itemsize:
        raise ValueError(f"base64 of little-endian 32-bit integers; {len(data)} bytes are no multiple of 4")
    return np.frombuffer(data, dtype=_INT32)
