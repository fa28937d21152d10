"""Documents in the form that a store takes: token ids and re-tokenized prefixes, and their tokenization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.text.retokenized import HEAD, normalized, pieces, retokenized_prefixes, with_leads

Tokens = npt.NDArray[np.int32]
Tokenize = Callable[[str], Sequence[int]]
TokenizeMany = Callable[[list[str]], Sequence[Sequence[int]]]

_NONE = np.empty(0, dtype=np.int32)
# tokenized at a time
_CHARACTERS = 1 << 21
_TEXTS = 4096


class Document(NamedTuple):
    """A document to store.

    Attributes:
        name: the name by which it is found and removed within its corpus.
        token_ids: [n] int32, its text.
        prefixes: [n] int32 each, its first tokens as tokenized after other text; see `specplug.text.retokenized`.
    """

    name: str
    token_ids: Tokens
    prefixes: tuple[Tokens, ...] = ()


class Content(NamedTuple):
    """A document as a source has it: its text, or [n] int32 token ids if the text is None."""

    name: str
    text: str | None
    token_ids: Tokens = _NONE


def tokenized(name: str, text: str, tokenize: Tokenize) -> Document:
    """Return a text of any length as a document; `tokenize` maps a text to ids, without special tokens."""
    (document,) = tokenized_many([(name, text)], lambda texts: [tokenize(each) for each in texts])
    return document


def tokenized_many(named: Iterable[tuple[str, str]], tokenize: TokenizeMany) -> list[Document]:
    """Return (name, text) pairs as documents; one call tokenises all texts."""
    texts = ((name, normalized(text)) for name, text in named)
    plan = [(name, list(pieces(text)), with_leads(text), len(text) > HEAD) for name, text in texts]
    found = iter(tokenize([part for _, body, heads, _ in plan for part in (*body, *heads)]))
    return [
        _document(name, [list(next(found)) for _ in body], [list(next(found)) for _ in heads], cut)
        for name, body, heads, cut in plan
    ]


def documents_from(contents: Iterable[Content], encode_many: TokenizeMany) -> Iterator[Document]:
    """Yield contents as documents, tokenized a few thousand at a time, so that no more are in memory."""
    waiting: list[Content] = []
    size = 0
    for content in contents:
        waiting.append(content)
        size += len(content.text or "")
        if size >= _CHARACTERS or len(waiting) >= _TEXTS:
            yield from _tokenized(waiting, encode_many)
            waiting = []
            size = 0
    yield from _tokenized(waiting, encode_many)


def _document(name: str, bodies: list[list[int]], heads: list[list[int]], cut: bool) -> Document:
    others = retokenized_prefixes(bodies[0], heads, cut=cut) if bodies else []
    body = np.concatenate([_array(each) for each in bodies]) if bodies else _array(())
    return Document(name, body, tuple(map(_array, others)))


def _array(ids: Sequence[int]) -> Tokens:
    return np.asarray(ids, dtype=np.int32)


def _tokenized(contents: Sequence[Content], encode_many: TokenizeMany) -> Iterator[Document]:
    texts = iter(tokenized_many([(each.name, each.text) for each in contents if each.text is not None], encode_many))
    for each in contents:
        yield Document(each.name, each.token_ids) if each.text is None else next(texts)
