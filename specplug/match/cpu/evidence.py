"""Hit rates of matches, learnt online: how often candidates, and the tokens considered from them, were right.

Four tables count tries and hits; see `tables` for what they start from.  Learning needs no verification: every token
that the target emits shows for each candidate whether it was right, even if it was not drafted or was cut before
verification.

- `votes`, by kind of candidate and match length: a candidate's weight in the choice of the drafted token.
- `evidence`, by the evidence for a token: match length, share of votes, support, the row's recent hit rate, sources.
- `contexts`, by the token before and the match length: some tokens have predictable continuations, others do not.
- `tokens`, by the token itself and whether the votes agree: some tokens are predictable, others are not.

A token's confidence combines the last three as the mean of their log-odds, in which evidence counts twice; so does the
second stage of a PAQ compressor (M. Mahoney, 2005).  Counts are whole numbers and are halved after a step if they are
large, so the result does not depend on the order of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.intrinsics import prefetch

Table = npt.NDArray[np.float32]

OWN, RESPONSE, CORPUS, NAMED = 0, 1, 2, 3
"""Source of a candidate; NAMED is a corpus that the request names.  Its kind adds `NEAR` or `ALIGNED` to the source."""

FROM = 3
"""Mask of the source: `kind & FROM` is a candidate's source."""

NEAR, ALIGNED = 4, 8
"""Near the place that the text last followed; and exactly that place, whatever matches."""

KINDS, LENGTHS, SHARES, SUPPORTS, HIT_RATES, SOURCES = 12, 14, 9, 3, 3, 8
HASHES, COARSE = 16384, 6

MOST_TRIES = 4000.0
MOST_CONTEXT_TRIES = 200.0
"""Also of `tokens`."""

PRIOR_TRIES = 2.0
"""Tries at the rate of the evidence that count with a row's own in `contexts` and `tokens`, which start empty."""

_LEAST_RATE = 0.005
_AGREED = 0.7
"""Share of the votes above which they agree."""

_LEAST = np.float32(0.01)
"""The least count of hits and of misses, because repeated halving would make the rarer of them vanish."""


@compiled
def length_class(length: int) -> int:
    """Return the class of a match length, of `LENGTHS` classes."""
    if length <= 8:
        return length
    if length <= 12:
        return 9
    if length <= 16:
        return 10
    if length <= 24:
        return 11
    return 12 if length <= 40 else 13


@compiled
def share_class(share: float) -> int:
    """Return the class of a share of the votes, of `SHARES` classes."""
    bounds = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.999)
    found = 0
    for bound in bounds:
        found += share > bound
    return found


@compiled
def source_bit(kind: int) -> int:
    """Return the bit of a candidate's source: 1 own text, 2 responses, 4 corpora."""
    return 1 << min(kind & FROM, CORPUS)


@compiled
def vote_key(kind: int, length: int) -> int:
    """Return the row of `votes`."""
    return kind * LENGTHS + length_class(length)


@compiled
def evidence_key(length: int, share: float, support: int, hit_rate: float, sources: int, near: int) -> int:
    """Return the row of `evidence` for a token.

    Args:
        length: length of the longest match that predicts it.
        share: its share of all votes.
        support: number of candidates that predict it.
        hit_rate: recent rate at which the first token of the row's drafts was right, 0 to 1.
        sources: bits of the candidates' sources, see `source_bit`.
        near: 1 if one of the candidates is near, or at, the place that the text last followed.
    """
    supported = 0 if support == 1 else (1 if support <= 3 else 2)
    hit_level = 0 if hit_rate < 0.25 else (1 if hit_rate < 0.6 else 2)
    key = (length_class(length) * SHARES + share_class(share)) * SUPPORTS + supported
    return ((key * HIT_RATES + hit_level) * SOURCES + sources) * 2 + near


@compiled
def _hash(token: int, owner: int) -> int:
    mixed = (np.uint64(token) + np.uint64(owner) * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64((mixed >> np.uint64(40)) % np.uint64(HASHES))  # type: ignore[return-value]


@compiled
def token_key(token: int, owner: int, share: float) -> int:
    """Return the row of `tokens` for `token` in texts of `owner`, by whether most votes are for it."""
    return 2 * _hash(token, owner) + int(share > _AGREED)


@compiled
def context_key(token: int, owner: int, length: int, share: float) -> int:
    """Return the row of `contexts` for what follows `token` in texts of `owner`, by match length and share of votes."""
    row = _hash(token, owner) * COARSE + min(length_class(length) // 2, COARSE - 1)
    return 3 * row + int(share > 0.3) + int(share > 0.85)  # type: ignore[return-value]


@compiled
def prefetch_counts(tables: Any, token: int, owner: int, length: int, share: float) -> None:
    """Prefetch the likely rows of a token and of what follows it; the tables are larger than near caches."""
    prefetch(tables.tokens, 2 * token_key(token, owner, share))
    prefetch(tables.contexts, 2 * context_key(token, owner, length, share))


@compiled
def odds(table: Any, key: int) -> float:
    """Return hits over misses, above 0 and finite."""
    return max(table[key, 0], _LEAST) / max(table[key, 1] - table[key, 0], _LEAST)  # type: ignore[no-any-return]


@compiled
def odds_after(table: Any, key: int, evidence: float) -> float:
    """Return hits over misses, above 0 and finite, with `PRIOR_TRIES` more tries at the evidence's odds."""
    rate = min(max(evidence / (1.0 + evidence), _LEAST_RATE), 1.0 - _LEAST_RATE)
    hits, tries = np.float64(table[key, 0]), np.float64(table[key, 1])
    return (hits + PRIOR_TRIES * rate) / (tries - hits + PRIOR_TRIES * (1.0 - rate))  # type: ignore[no-any-return]


@compiled
def confidence(tables: Any, evidence: int, context: int, token: int) -> float:
    """Return the probability that a token is right, in (0, 1), from its rows in the tables."""
    seen = np.float64(odds(tables.evidence, evidence))
    after = odds_after(tables.contexts, context, seen)
    joint = np.sqrt(seen * np.sqrt(after * odds_after(tables.tokens, token, seen)))
    return joint / (1.0 + joint)  # type: ignore[no-any-return]


@compiled
def count(table: Any, key: int, hit: bool) -> None:
    """Count one try."""
    table[key, 0] += hit
    table[key, 1] += 1


@compiled
def halve(table: Any, key: int, most: float) -> None:
    """Halve hits and tries if there are more than `most` tries, so that older tries count less."""
    if table[key, 1] > most:
        table[key, 0] *= 0.5
        table[key, 1] *= 0.5
