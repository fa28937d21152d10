"""What a store tells of itself and of what was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Progress = Callable[[int, int], None]


class CorpusInfo(NamedTuple):
    """What lives of a corpus.  `bytes`: its share of its segments' files, by tokens."""

    tenant: str
    name: str
    documents: int
    tokens: int
    bytes: int


class Added(NamedTuple):
    """What was added.

    Attributes:
        documents, tokens: how many, and the tokens of their bodies.
        empty: documents without a token, which were left out.
        segments, bytes: the files that were written.
        present: documents that the corpus had already, word for word, which were left out, too.
        same_name: of those that were added, how many have the name of another one of the corpus.
    """

    documents: int
    tokens: int
    empty: int
    segments: int
    bytes: int
    present: int = 0
    same_name: int = 0


class Synced(NamedTuple):
    """What bringing a corpus up to date changed.

    Attributes:
        added: documents of names that were not there.
        replaced: documents of which the text changed.
        removed: documents that are not there any more, replaced ones not counted.
        unchanged: documents that stay as they were.
        empty: documents without a token, which were left out.
        documents, tokens: of the corpus now.
        segments, bytes: the files that were written.
    """

    added: int
    replaced: int
    removed: int
    unchanged: int
    empty: int
    documents: int
    tokens: int
    segments: int
    bytes: int


class Removed(NamedTuple):
    """How much was removed."""

    documents: int
    tokens: int


class Merged(NamedTuple):
    """How many segments were read, and how many were written instead."""

    read: int
    written: int


class Problem(NamedTuple):
    """What is wrong with a file of the store."""

    path: str
    what: str
