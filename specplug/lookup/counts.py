"""The counts of hits and tries, and what they start from.

Votes and evidence start from a few tries at hit rates that were learnt on recorded texts: their log-odds are linear in
a few features, with the weights below, a logistic regression's on the shipped traces and on answers of a small model.
Contexts and tokens start empty, with the odds of the evidence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = 8
LENGTHS = 14
SHARES = 9
SUPPORTS = 3
HIT_RATES = 3
ORIGINS = 8
"""Classes of candidates' kinds, match lengths, shares of the votes, support, hit rates, and sets of sources."""
HASHES = 1 << 14
COARSE = 6
"""Hashes of a token, and classes of match lengths in contexts."""
EVIDENCE = KINDS * LENGTHS
CONTEXTS = EVIDENCE + LENGTHS * SHARES * SUPPORTS * HIT_RATES * ORIGINS * 2
TOKENS = CONTEXTS + HASHES * COARSE * 3
TOKENS_END = TOKENS + HASHES * 2
"""First rows of evidence, contexts and tokens after those of votes, and of the engine's tokens."""

VOTE_TRIES = 20
EVIDENCE_TRIES = 16
ENGINE_HITS = 3
ENGINE_TRIES = 4
"""What the engine's tokens of all requests start from at each position."""
VOTE_WEIGHTS = (-1.554, -2.159, -2.569, 5.891, 6.708, 6.269, -1.919, 0.523, -0.009)
"""By source the base, by source the length; then no match, near or at an anchor, the longest class."""
LENGTH_WEIGHTS = (-0.834, -0.28, -1.901, 1.017, 4.426)
"""Of evidence: base, length, no match, the longest class, length times share."""
SHARE_WEIGHTS = (-1.379, -0.925, -0.636, -0.202, 0.164, 0.447, 0.834, 0.861)
SUPPORT_WEIGHTS = (-0.824, -0.246, 0.236)
HIT_RATE_WEIGHTS = (-0.609, -0.288, 0.064)
ORIGIN_WEIGHTS = (0.581, 0.14, 0.304)
BOTH_WEIGHT = -0.123
NEAR_WEIGHT = 0.266
"""Of own text, responses and corpora; of the first two together; and of a place near an anchor."""

_TYPICAL = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 20, 32, 64])
"""A match length of each class."""
_LENGTH = np.log2(np.maximum(_TYPICAL, 1)) / 6


def start_counts(unit: int) -> npt.NDArray[np.int32]:
    """Return hits and tries at the start, [`TOKENS_END`, 2], in units of a try."""
    counts = np.zeros((TOKENS_END, 2), np.int32)
    for rows, log_odds, tries in (
        (slice(EVIDENCE), _votes(), VOTE_TRIES),
        (slice(EVIDENCE, CONTEXTS), _evidence(), EVIDENCE_TRIES),
    ):
        counts[rows, 0] = np.round(tries * unit / (1 + np.exp(-log_odds.ravel())))
        counts[rows, 1] = tries * unit
    return counts


def engine_counts(slots: int, engine_tokens: int, unit: int) -> npt.NDArray[np.int32]:
    """Return hits and tries of the engine's tokens at the start, of all requests and of each slot, [G + S G, 2]."""
    counts = np.zeros(((1 + slots) * engine_tokens, 2), np.int32)
    counts[:engine_tokens] = ENGINE_HITS * unit, ENGINE_TRIES * unit
    return counts


def _votes() -> Any:
    own, response, corpus, own_length, response_length, corpus_length, none, near, longest = VOTE_WEIGHTS
    flags = none * (np.arange(LENGTHS) == 0) + longest * (np.arange(LENGTHS) == LENGTHS - 1)
    of_own = own + own_length * _LENGTH + flags
    of_responses = response + response_length * _LENGTH + flags
    of_corpora = corpus + corpus_length * _LENGTH + flags
    matches = of_own, of_responses, of_corpora, of_corpora
    return np.stack((*matches, of_own + near, of_own + near, of_responses + near, of_corpora + near))


def _evidence() -> Any:
    size, share, support, rate, origins, near = np.ogrid[:LENGTHS, :SHARES, :SUPPORTS, :HIT_RATES, :ORIGINS, :2]
    base, length, none, longest, product = LENGTH_WEIGHTS
    found = base + length * _LENGTH[size] + none * (size == 0) + longest * (size == LENGTHS - 1)
    # No chain has tokens of the lowest share: extrapolated from the next two.
    shares = np.array((2 * SHARE_WEIGHTS[0] - SHARE_WEIGHTS[1], *SHARE_WEIGHTS))
    found = found + product * _LENGTH[size] * share / (SHARES - 1) + shares[share]
    found = found + np.array(SUPPORT_WEIGHTS)[support] + np.array(HIT_RATE_WEIGHTS)[rate] + NEAR_WEIGHT * near
    for bit, weight in enumerate(ORIGIN_WEIGHTS):
        found = found + weight * (origins >> bit & 1)
    return found + BOTH_WEIGHT * ((origins & 3) == 3)
