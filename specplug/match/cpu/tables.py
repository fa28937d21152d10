"""The four tables of hits and tries, and what they start from.

`votes` and `evidence` start from a few tries at hit rates that were learnt on recorded texts: their log-odds are linear
in the features below, with the weights in `start_weights`.  So few weights hold on texts of other kinds as well; a
table with its own rate for each cell does not.  `contexts` and `tokens` start empty, with the odds of the evidence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specplug.match.cpu.evidence import (
    COARSE,
    CORPUS,
    HASHES,
    HIT_RATES,
    KINDS,
    LENGTHS,
    SHARES,
    SOURCES,
    SUPPORTS,
    Table,
)
from specplug.match.cpu.records import record
from specplug.match.cpu.start_weights import EVIDENCE, VOTES

START_TRIES = {"votes": 20, "evidence": 16}
"""Tries at the start: those with which held-out texts had the lowest log loss and the most tokens per step."""

Features = npt.NDArray[np.float64]

_TYPICAL = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 20, 32, 64.0])
"""A match length of each class."""


class Tables:
    """The four tables, each [n, 2] float32: hits and tries."""

    def __init__(self) -> None:
        self.votes = _started(vote_features(), VOTES, START_TRIES["votes"])
        self.evidence = _started(evidence_features(), EVIDENCE, START_TRIES["evidence"])
        self.contexts = np.zeros((3 * COARSE * HASHES, 2), np.float32)
        self.tokens = np.zeros((2 * HASHES, 2), np.float32)
        self.record = record(votes=self.votes, evidence=self.evidence, contexts=self.contexts, tokens=self.tokens)

    @property
    def arrays(self) -> tuple[Table, Table, Table, Table]:
        """All tables."""
        return self.votes, self.evidence, self.contexts, self.tokens


def vote_features() -> Features:
    """Return the features of each row of `votes`, [n, 9]: by source the base and the length; then flags."""
    kind, size = np.unravel_index(np.arange(KINDS * LENGTHS), (KINDS, LENGTHS))
    source = np.minimum(kind % 4, CORPUS)
    length = _length(size)
    sources = _one_hot(source, CORPUS + 1)
    flags = size == 0, kind >= 4, size == LENGTHS - 1
    return np.column_stack((sources, sources * length[:, None], *flags))


def evidence_features() -> Features:
    """Return the features of each row of `evidence`, [n, 24], see `evidence_key`."""
    shape = LENGTHS, SHARES, SUPPORTS, HIT_RATES, SOURCES, 2
    size, share, support, hit_rate, sources, near = np.unravel_index(np.arange(np.prod(shape)), shape)
    length, (own, response, corpus) = _length(size), ((sources >> bit) & 1 for bit in range(3))
    shares = _one_hot(share - 1, SHARES - 1)
    shares[share == 0, :2] = 2, -1  # trees alone have such tokens: extrapolated from the next two classes
    one_hot = shares, _one_hot(support, SUPPORTS), _one_hot(hit_rate, HIT_RATES)
    flags = own, response, corpus, own * response, near
    lengths = np.ones(len(size)), length, size == 0, size == LENGTHS - 1, length * share / (SHARES - 1)
    return np.column_stack((*lengths, *one_hot, *flags))


def _length(size: npt.NDArray[np.int64]) -> Features:
    """Return the logarithm of the match length of each class, from 0 to 1."""
    found: Features = np.log2(np.maximum(_TYPICAL, 1))[size] / 6
    return found


def _one_hot(classes: npt.NDArray[np.int64], count: int) -> Features:
    found: Features = (classes[:, None] == np.arange(count)).astype(np.float64)
    return found


def _started(features: Features, weights: tuple[float, ...], tries: int) -> Table:
    """Return tries at the rates of a model; rounded, so that all machines start alike."""
    hits = np.round(tries / (1.0 + np.exp(-features @ np.array(weights))), 3)
    return np.stack((hits, np.full_like(hits, tries)), 1).astype(np.float32)
