"""A corpus on its way from an operator's texts to the scheduler.

SGLang tokenises on its event loop, and its scheduler unpacks every token between two steps: for a million tokens
seconds of the one and 45 ms of the other.  Here texts are read on a thread, and their ids pass in a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Tokenize = Callable[[str], Tokens]

SEPARATOR = -(2**31)
"""What SGLang puts before every document but the first; no token."""

_IN_FILE = SEPARATOR + 1
"""What stands before the bytes of a file's name, in place of tokens."""

_PIECE = 1 << 12


class Reading(NamedTuple):
    """A corpus as token ids.

    Attributes:
        ids: [n] int32, documents with separators between them.
        truncated: whether documents were left out, for there were too many.
    """

    ids: Tokens
    truncated: bool


def read_documents(documents: Iterable[str], tokenize: Tokenize, most: int) -> Reading:
    """Read texts up to the first that does not fit into `most` tokens, separators counted, as SGLang does."""
    parts: list[Tokens] = []
    size = 0
    for text in documents:
        ids = tokenize(text)
        if not ids.size:
            continue
        part = np.concatenate([np.array([SEPARATOR], np.int32), ids]) if parts else ids
        if size + part.size > most:
            return Reading(_joined(parts), truncated=True)
        parts.append(part)
        size += part.size
    return Reading(_joined(parts), truncated=False)


def read_file(path: str, tokenize: Tokenize, most: int) -> Reading:
    """Read a file of JSON lines; SGLang's own reader raises ValueError for what it does not take."""
    from sglang.srt.speculative.cpp_ngram.external_corpus import iter_external_corpus_chunks

    return Reading(joined(iter_external_corpus_chunks(path, _Encoder(tokenize), most)), truncated=False)


class _Encoder:
    """A tokenizer as SGLang's reader calls it."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = self._tokenize(text).tolist()
        return ids


@contextmanager
def handed_over(ids: Tokens, *, one_host: bool) -> Iterator[list[list[int]]]:
    """Give what SGLang is to send in place of chunks of tokens, while it is sent and taken in.

    Args:
        ids: of a corpus.
        one_host: whether all schedulers can open this process's temporary files.
    """
    if not one_host:
        yield [ids[start : start + _PIECE].tolist() for start in range(0, len(ids), _PIECE)]
        return
    handle, path = tempfile.mkstemp(prefix="specplug-corpus-")
    try:
        with os.fdopen(handle, "wb") as file:
            ids.tofile(file)
        yield [[_IN_FILE, *os.fsencode(path)]]
    finally:
        os.unlink(path)


def taken(token_chunks: Iterable[Sequence[int]]) -> Tokens:
    """Return the ids, [n] int32, read-only, that were handed over, or that SGLang itself cut to chunks."""
    chunks = list(token_chunks)
    if chunks and chunks[0][:1] == [_IN_FILE]:
        text = np.fromfile(os.fsdecode(bytes(chunks[0][1:])), np.int32)
    else:
        text = joined(chunks)
    text.flags.writeable = False
    return text


def joined(chunks: Iterable[Sequence[int]]) -> Tokens:
    """Return chunks as one text, [n] int32; long ones in pieces, as an engine steps beside."""
    return _joined(
        [
            np.asarray(chunk[start : start + _PIECE], np.int32)
            for chunk in chunks
            for start in range(0, len(chunk), _PIECE)
        ]
    )


def documents_of(ids: Tokens) -> list[Tokens]:
    """Return the documents of a corpus, [n] int32 each, none empty."""
    separators = np.flatnonzero(ids == SEPARATOR)
    starts, ends = [0, *(separators + 1).tolist()], [*separators.tolist(), len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True) if end > start]


def _joined(parts: list[Tokens]) -> Tokens:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
