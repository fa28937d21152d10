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
    """

    documents: int
    tokens: int
    empty: int
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
