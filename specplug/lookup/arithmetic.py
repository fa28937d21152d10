"""Whole numbers that decide: logarithms, weights, classes, hashes and rows of counts.

`plain` runs these functions, `compiled` compiles them, `kernels` has its own.  No number exceeds 63 bits.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from specplug.lookup import counts
from specplug.lookup import layout as at


@register_jitable
def log2(number: int) -> int:
    """Return the logarithm to base 2 of a number from 1 to 2^32, in `FRACTION`s, rounded down to the table."""
    exponent = 0
    for bits in (16, 8, 4, 2, 1):
        if number >> exponent >= 1 << bits:
            exponent += bits
    return exponent * at.FRACTION + int(at.LOGARITHMS[(number << 8 >> exponent) & 255])


@register_jitable
def log_odds(hits: int, tries: int) -> int:
    """Return the log-odds of counts, each of which is at least one unit."""
    return log2(max(hits, 1)) - log2(max(tries - hits, 1))


@register_jitable
def log_odds_after(hits: int, tries: int, level: int, pairs: int = 1) -> int:
    """Return the log-odds of counts and of so many pairs of tries more, at the rate `level`."""
    scale = at.LEVELS // (2 * at.UNIT)
    return log2(hits * scale + pairs * level) - log2((tries - hits) * scale + pairs * (at.LEVELS - level))


@register_jitable
def weight(log_odds: int, rank: int) -> int:
    """Return the weight of a vote: the square of its odds, less what its rank costs; below 2^55."""
    log = max(2 * min(log_odds, at.MAX_ODDS) + 2 * at.MAX_ODDS - int(at.AGES[rank]), 0)
    return int(at.POWERS[log & (at.FRACTION - 1)]) << (log >> 8)


@register_jitable
def probability(log_odds: int) -> int:
    """Return the level, above 0 and below `LEVELS`."""
    return int(at.PROBABILITIES[(min(max(log_odds, -at.MAX_LOG), at.MAX_LOG - 1) + at.MAX_LOG) >> 2])


@register_jitable
def length_class(length: int) -> int:
    """Return the class of a match length: 0 to 8 are their own, then up to 12, 16, 24, 40 and all longer ones."""
    return min(length, 8) + (length > 8) + (length > 12) + (length > 16) + (length > 24) + (length > 40)


@register_jitable
def share_class(score: int, total: int) -> int:
    """Return the class of a token's share of the votes."""
    found = 0
    for bound in at.SHARE_BOUNDS:
        found += score > (total >> 12) * bound
    return found


@register_jitable
def next_hash(hashed: int, token: int) -> int:
    """Return a hash, of 31 bits, of another hash and a token."""
    return (((hashed ^ token) & 0x7FFFFFFF) * at.MULTIPLIER >> 16) & 0x7FFFFFFF


@register_jitable
def bucket_of(text: Any, end: int, tokens: int, owner: int, buckets: int) -> int:
    """Return the bucket of the tokens before `end` in an owner's texts; -1 if they are too few, or not all text."""
    if end < tokens:
        return -1
    hashed = next_hash(owner, 0)
    for distance in range(tokens):
        token = int(text[end - 1 - distance])
        if token < 0:
            return -1
        hashed = next_hash(hashed, token)
    return (hashed >> 4) & (buckets - 1)


@register_jitable
def entry_of(owner: int, number: int) -> int:
    """Return the entry of a bucket that an owner's response takes; neighbouring owners spare different entries."""
    return (owner * at.SPARED + number % at.USED) % at.ENTRIES


@register_jitable
def vote_row(kind: int, length: int) -> int:
    """Return the row of counts of a candidate's votes."""
    return kind * counts.LENGTHS + length_class(length)


@register_jitable
def judging_rows(
    token: int, last: int, owner: int, size: int, share: int, support: int, hit_rate: int, origins: int, near: int
) -> tuple[int, int, int]:
    """Return the rows of evidence, contexts and tokens of a drafted token after `last`, in texts of `owner`.

    Args:
        size, share: classes of the longest match that predicts it, and of its share of the votes.
        support, origins: candidates that predict it; 1 if some are of own text or references, plus 2 for responses
            and 4 for corpora.
        hit_rate, near: see `HIT_RATE`; 1 if a candidate is near, or at, an anchor.
    """
    supported = (support > 1) + (support > 3)
    rate = (hit_rate >= at.LEVELS // 4) + (hit_rate >= at.LEVELS * 3 // 5)
    key = ((size * counts.SHARES + share) * counts.SUPPORTS + supported) * counts.HIT_RATES + rate
    context = next_hash(next_hash(owner, 0), last) >> 4 & (counts.HASHES - 1)
    context = 3 * (context * counts.COARSE + min(size // 2, counts.COARSE - 1)) + (share > 2) + (share > 5)
    own = next_hash(next_hash(owner, 0), token) >> 4 & (counts.HASHES - 1)
    evidence = counts.EVIDENCE + (key * counts.ORIGINS + origins) * 2 + near
    return evidence, counts.CONTEXTS + context, counts.TOKENS + 2 * own + (share > 4)
