"""Texts that a request's drafts may copy from: conversion of token ids and texts to references, within the limits."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import RequestError, SpecplugError, quote
from specplug.text.retokenized import normalized
from specplug.types.request import Reference

Ids = npt.NDArray[np.integer]
Tokenize = Callable[[str], Sequence[int] | Ids]

CHARACTERS_PER_TOKEN = 16
"""Texts with more characters than this times the tokens still allowed are refused without being tokenised.  Prose and
code have 3 to 5 characters per token in today's vocabularies."""

Source = tuple[str, str, str | Ids]
"""A text: the request's field, the reference's name, and the text or its ids."""

_PIECE = 1 << 14
_INT32 = np.dtype("<i4")


def to_references(sources: Sequence[Source], tokenize: Tokenize, vocab_size: int, limit: int) -> tuple[Reference, ...]:
    """Convert texts to references of at most `limit` tokens in all; sizes that need no tokenizer are checked first.

    Raises:
        RequestError: the texts are too large, or an id is not in [0, vocab_size).
    """
    num_ids = sum(len(content) for _, _, content in sources if not isinstance(content, str))
    characters = sum(len(content) for _, _, content in sources if isinstance(content, str))
    if num_ids > limit:
        raise _too_large(f"{num_ids} tokens", limit)
    if characters > CHARACTERS_PER_TOKEN * (limit - num_ids):
        raise _too_large(f"{characters} characters and {num_ids} tokens", limit)
    references = []
    total = 0
    for field, name, content in sources:
        ids = tokenize(normalized(content)) if isinstance(content, str) else content
        total += len(ids)
        if total > limit:
            raise _too_large(f"{total} tokens up to {field!r}", limit)
        references.append(Reference(in_vocabulary(field, ids, vocab_size), name))
    return tuple(references)


def _too_large(found: str, limit: int) -> SpecplugError:
    return RequestError.build(
        "references of the request are too large",
        found=found,
        expected=f"at most {limit} tokens in all",
        remedy="Send less text, or raise the server's limits.max_reference_tokens",
    )


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


def _convert(piece: Sequence[Any], out: npt.NDArray[np.int64], start: int) -> None:
    if set(map(type, piece)) <= {int}:  # excludes bool, a subclass of int
        try:
            out[:] = piece
            return
        except OverflowError:
            pass
    index = next(i for i, token in enumerate(piece) if type(token) is not int or not -(2**63) <= token < 2**63)
    kind = "integers of 64 bits" if type(piece[index]) is int else "integers"
    raise ValueError(f"{kind} only; entry {start + index} is {quote(piece[index])}")


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
