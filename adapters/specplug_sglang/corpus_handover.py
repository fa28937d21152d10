"""Transfer of a corpus from the process that takes the operator's texts to the scheduler.

SGLang tokenises on its event loop, and its scheduler unpacks every token between two steps: a million tokens take
seconds and 45 ms respectively.  Here a thread tokenises the texts, and a file carries their ids.
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
"""SGLang's separator between documents; not a token id."""

_IN_FILE = SEPARATOR + 1
"""Marker, in place of a token id, that the bytes of a file name follow."""

_PIECE = 1 << 12


class Reading(NamedTuple):
    """A corpus as token ids.

    Attributes:
        ids: [n] int32, documents with separators between them.
        truncated: whether documents that exceed the token limit were left out.
    """

    ids: Tokens
    truncated: bool


def read_documents(documents: Iterable[str], tokenize: Tokenize, most: int) -> Reading:
    """Tokenise texts up to the first that does not fit into `most` tokens, separators included, as SGLang does."""
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
    """Read a file of JSON lines; SGLang's own reader raises ValueError for invalid input."""
    from sglang.srt.speculative.cpp_ngram.external_corpus import iter_external_corpus_chunks

    return Reading(joined(iter_external_corpus_chunks(path, _Encoder(tokenize), most)), truncated=False)


class _Encoder:
    """Tokenizer interface that SGLang's reader expects."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = self._tokenize(text).tolist()
        return ids


@contextmanager
def handed_over(ids: Tokens, *, one_host: bool) -> Iterator[list[list[int]]]:
    """Yield the chunks for SGLang to send: the name of a temporary file, deleted on exit, or pieces of the ids.

    Args:
        ids: [n] int32, a corpus.
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
    """Return the ids, [n] int32, read-only, from `handed_over` chunks or from SGLang's own."""
    chunks = list(token_chunks)
    if chunks and chunks[0][:1] == [_IN_FILE]:
        text = np.fromfile(os.fsdecode(bytes(chunks[0][1:])), np.int32)
    else:
        text = joined(chunks)
    text.flags.writeable = False
    return text


def joined(chunks: Iterable[Sequence[int]]) -> Tokens:
    """Return chunks as one text, [n] int32.  Long chunks are converted in pieces, as an engine steps concurrently."""
    return _joined(
        [
            np.asarray(chunk[start : start + _PIECE], np.int32)
            for chunk in chunks
            for start in range(0, len(chunk), _PIECE)
        ]
    )


def documents_of(ids: Tokens) -> list[Tokens]:
    """Return the non-empty documents of a corpus, [n] int32 each."""
    separators = np.flatnonzero(ids == SEPARATOR)
    starts, ends = [0, *(separators + 1).tolist()], [*separators.tolist(), len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True) if end > start]


def _joined(parts: list[Tokens]) -> Tokens:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
