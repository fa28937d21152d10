"""What all kernels of the lookup have in common: functions of `arithmetic` and `learning` on numbers.

No kernel calls a function that Triton itself defines as one, so that its interpreter runs them wherever it is asked to.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from specplug.lookup import counts as of
from specplug.lookup import layout as at

LONG_KEY, SHORT_KEY, SHORTEST_KEY, BOUNDS = map(tl.constexpr, (*at.KEYS, len(at.SHARE_BOUNDS)))
PAIRS = tl.constexpr(at.COMMON_TRIES // 2)
POWERS, PROBABILITIES, AGES = map(tl.constexpr, (at.FRACTION, 2 * at.FRACTION, 2 * at.FRACTION + at.MAX_LOG // 2))
SHARE_BOUNDS = tl.constexpr(AGES.value + at.RANKS)
"""Where parts of `FIGURES` begin, as do those of the line above."""
NUMBERS = tl.constexpr(str([it for it in (*vars(at).items(), *vars(of).items()) if isinstance(it[1], int)]))
"""All numbers that kernels read from modules: Triton's cache knows compiled kernels by constants of their own alone."""


def kernel(function: Any) -> Any:
    """Decorate a kernel, of which one variant serves all arguments but those in capitals."""
    names = [name for name in function.__code__.co_varnames[: function.__code__.co_argcount] if not name.isupper()]
    return triton.jit(do_not_specialize=names, do_not_specialize_on_alignment=names)(function)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def larger(a, b):
    _: tl.constexpr = NUMBERS  # each kernel uses this function, so that it is compiled anew when one of them changes
    return tl.where(a > b, a, b)


@triton.jit
def smaller(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def flags(mask):
    """Return a mask as booleans, which a vector & a scalar is not in Triton's interpreter."""
    return mask.to(tl.int32) > 0


@triton.jit
def origins_of(kinds):
    is_response = (kinds == at.RESPONSE) | (kinds == at.RESPONSE_ALIGNED)
    is_corpus = (kinds == at.CORPUS) | (kinds == at.NAMED) | (kinds == at.CORPUS_ALIGNED)
    return tl.where(is_response, 2, tl.where(is_corpus, 4, 1))


@triton.jit
def log2(figures, number):
    exponent = (number * 0).to(tl.int32)
    for step in tl.static_range(5):
        exponent += tl.where((number >> exponent) >= (1 << (16 >> step)), 16 >> step, 0)
    return exponent * at.FRACTION + tl.load(figures + ((number << 8 >> exponent) & 255))


@triton.jit
def load_counts(table, rows, mask):
    hits = tl.load(table + 2 * rows, mask=mask, other=0)
    tries = tl.load(table + 2 * rows + 1, mask=mask, other=0)
    return hits.to(tl.int64), tries.to(tl.int64)


@triton.jit
def log_odds(table, figures, rows, mask):
    hits, tries = load_counts(table, rows, mask)
    return log2(figures, larger(hits, 1)) - log2(figures, larger(tries - hits, 1))


@triton.jit
def log_odds_after(table, figures, rows, mask, level, PAIRS: tl.constexpr):
    hits, tries = load_counts(table, rows, mask)
    scale = at.LEVELS // (2 * at.UNIT)
    missed = (tries - hits) * scale + PAIRS * (at.LEVELS - level)
    return log2(figures, hits * scale + PAIRS * level) - log2(figures, missed)


@triton.jit
def weight(figures, log_odds, ranks):
    log = larger(2 * smaller(log_odds, at.MAX_ODDS) + 2 * at.MAX_ODDS - tl.load(figures + AGES + ranks), 0)
    return tl.load(figures + POWERS + (log & (at.FRACTION - 1))).to(tl.int64) << (log >> 8)


@triton.jit
def probability(figures, log_odds):
    return tl.load(
        figures + PROBABILITIES + ((smaller(larger(log_odds, -at.MAX_LOG), at.MAX_LOG - 1) + at.MAX_LOG) >> 2)
    )


@triton.jit
def length_class(length):
    over = (length > 8).to(tl.int32) + (length > 12).to(tl.int32) + (length > 16).to(tl.int32)
    return smaller(length, 8) + over + (length > 24).to(tl.int32) + (length > 40).to(tl.int32)


@triton.jit
def share_class(figures, score, total):
    found = (score * 0).to(tl.int32)
    for bound in tl.static_range(BOUNDS):
        found += (score > (total >> 12) * tl.load(figures + SHARE_BOUNDS + bound)).to(tl.int32)
    return found


@triton.jit
def next_hash(hashed, token):
    return (((hashed ^ token) & 0x7FFFFFFF).to(tl.int64) * at.MULTIPLIER >> 16) & 0x7FFFFFFF


@triton.jit
def bucket_of(text, end, owner, buckets, KEY: tl.constexpr):
    hashed = next_hash(owner.to(tl.int64), 0) + (end * 0).to(tl.int64)
    is_text = end >= KEY
    for distance in tl.static_range(KEY):
        token = tl.load(text + end - 1 - distance, mask=end >= KEY, other=-1)
        is_text = is_text & (token >= 0)
        hashed = next_hash(hashed, token.to(tl.int64))
    return tl.where(is_text, (hashed >> 4) & (buckets - 1), -1)


@triton.jit
def judging_rows(token, last, owner, size, share, support, hit_rate, origins, near):
    supported = (support > 1).to(tl.int32) + (support > 3).to(tl.int32)
    rate = (hit_rate >= at.LEVELS // 4).to(tl.int32) + (hit_rate >= at.LEVELS * 3 // 5).to(tl.int32)
    key = ((size * of.SHARES + share) * of.SUPPORTS + supported) * of.HIT_RATES + rate
    context = (next_hash(next_hash(owner, 0), last.to(tl.int64)) >> 4 & (of.HASHES - 1)).to(tl.int32) * of.COARSE
    context = 3 * (context + smaller(size // 2, of.COARSE - 1)) + (share > 2).to(tl.int32) + (share > 5).to(tl.int32)
    own = (next_hash(next_hash(owner, 0), token.to(tl.int64)) >> 4 & (of.HASHES - 1)).to(tl.int32)
    evidence = (key * of.ORIGINS + origins) * 2 + near
    own_row = 2 * own + (share > 4).to(tl.int32)
    return evidence + of.EVIDENCE, context + of.CONTEXTS, own_row + of.TOKENS


@triton.jit
def confidence(table, figures, evidence, contexts, tokens, mask):
    seen = log_odds(table, figures, evidence, mask)
    level = smaller(larger(probability(figures, seen), 20), at.LEVELS - 20)
    after = log_odds_after(table, figures, contexts, mask, level, 1)
    after += log_odds_after(table, figures, tokens, mask, level, 1)
    return probability(figures, (2 * seen + after) >> 2)


@triton.jit
def count(table, rows, hits, mask):
    mask = flags(mask)
    tl.atomic_add(table + 2 * rows, tl.where(hits, at.UNIT, 0), mask=mask, sem="relaxed")
    tl.atomic_add(table + 2 * rows + 1, tl.where(mask, at.UNIT, 0), mask=mask, sem="relaxed")
