"""Results of a store's operations, and descriptions of its contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Progress = Callable[[int, int], None]


class CorpusInfo(NamedTuple):
    """The live part of a corpus.  `bytes`: its share of its segments' files, by tokens."""

    tenant: str
    name: str
    documents: int
    tokens: int
    bytes: int


class Added(NamedTuple):
    """The result of adding documents.

    Attributes:
        documents, tokens: number of added documents, and tokens of their bodies.
        empty: skipped documents without tokens.
        segments, bytes: number and size of the files that were written.
        present: skipped documents that the corpus already had, with identical content.
        same_name: added documents that share their name with another document of the corpus.
    """

    documents: int
    tokens: int
    empty: int
    segments: int
    bytes: int
    present: int = 0
    same_name: int = 0


class Synced(NamedTuple):
    """The result of synchronising a corpus.

    Attributes:
        added: documents with new names.
        replaced: documents whose text changed.
        removed: documents that no longer exist, replaced ones not counted.
        unchanged: documents that did not change.
        empty: skipped documents without tokens.
        documents, tokens: documents and tokens of the corpus now.
        segments, bytes: number and size of the files that were written.
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
    """The result of a removal: the amounts removed."""

    documents: int
    tokens: int


class Merged(NamedTuple):
    """The result of a merge: the number of segments that were read, and of those that replace them."""

    read: int
    written: int


class Problem(NamedTuple):
    """A problem with a file of the store."""

    path: str
    what: str
