"""Documents in the form that a store takes: token ids and re-tokenized prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.text.pieces import pieces
from specplug.text.retokenized import HEAD, retokenized_prefixes, with_leads

Tokens = npt.NDArray[np.int32]
Tokenize = Callable[[str], Sequence[int]]
TokenizeMany = Callable[[list[str]], Sequence[Sequence[int]]]


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


def tokenized(name: str, text: str, tokenize: Tokenize) -> Document:
    """Return a text as a document with its re-tokenized prefixes.

    Args:
        name: name of the document.
        text: its text, of any length; a long one is tokenised in pieces.
        tokenize: text -> token ids, without special tokens; see `specplug.text.fingerprint.encoder`.
    """
    (document,) = tokenized_many([(name, text)], lambda texts: [tokenize(each) for each in texts])
    return document


def tokenized_many(named: Iterable[tuple[str, str]], tokenize: TokenizeMany) -> list[Document]:
    """Return (name, text) pairs as documents; one call tokenises all texts."""
    texts: list[str] = []
    plan: list[tuple[str, int, int, bool]] = []
    for name, text in named:
        body, heads = list(pieces(text)), with_leads(text)
        texts += body
        texts += heads
        plan.append((name, len(body), len(heads), len(text) > HEAD))
    found = iter(tokenize(texts))
    return [_document(name, _next(found, bodies), _next(found, heads), cut) for name, bodies, heads, cut in plan]


def _next(found: Iterator[Sequence[int]], count: int) -> list[list[int]]:
    return [list(next(found)) for _ in range(count)]


def _document(name: str, bodies: list[list[int]], heads: list[list[int]], cut: bool) -> Document:
    others = retokenized_prefixes(bodies[0], heads, cut=cut) if bodies else []
    body = np.concatenate([_array(each) for each in bodies]) if bodies else _array(())
    return Document(name, body, tuple(map(_array, others)))


def _array(ids: Sequence[int]) -> Tokens:
    return np.asarray(ids, dtype=np.int32)
