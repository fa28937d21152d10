"""What all kernels of the lookup have in common: constants, and functions of `arithmetic` and `learning` on numbers.

No kernel calls a function that Triton itself defines as one, so that its interpreter runs them wherever it is asked to.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from specplug.lookup import counts as of
from specplug.lookup import layout as at

GENERATION, OWNER, START, HIT_RATE, END, ENGINE, VOTED_FOR, CHAIN_FOR, CHAIN_NEXT, CHAIN_END = map(
    tl.constexpr, range(10)
)
GROUP, ENTRY, PROMPT, WRITTEN, SPAN, SPAN_END, ANCHORS = map(tl.constexpr, range(10, 17))
SEGMENT, SEGMENT_PLACE, PLACE_AT, FOLLOWED_AT, FACTS = map(tl.constexpr, range(20, 25))
CHAIN_EVIDENCE, CHAIN_CONTEXT, CHAIN_OWN, CHAIN_PARENT, CHAIN_ROWS = map(tl.constexpr, (*range(1, 5), at.CHAIN_ROWS))
NODE_SURVIVAL, NODE_TOKEN, NODE_LEVEL, NODE_SOURCE = map(tl.constexpr, (0, 2, 3, 4))
NODE_EVIDENCE, NODE_CONTEXT, NODE_OWN, NODE_PARENT, NODE_NUMBER, NODE_ROWS = map(tl.constexpr, range(5, 11))
SURE, SHORTEST, LEAST, ENGINE_SOURCE = map(tl.constexpr, (at.SURE, at.SHORTEST, at.LEAST, at.ENGINE_SOURCE))
OWN, RESPONSE, CORPUS, NAMED, NEAR, ALIGNED, RESPONSE_ALIGNED, CORPUS_ALIGNED = map(tl.constexpr, range(8))
CANDIDATES, OWN_MATCH, OWN_ANCHOR = map(tl.constexpr, (at.CANDIDATES, at.OWN_MATCH, at.OWN_ANCHOR))
SIBLINGS, OTHER_MATCHES, OTHERS_END = map(tl.constexpr, (at.SIBLINGS, at.OTHER_MATCHES, at.OTHERS_END))
USED, PAIRS = map(tl.constexpr, (at.USED, at.COMMON_TRIES // 2))
TABLE_CANDIDATES, RESPONSE_ANCHOR, LONGEST = map(tl.constexpr, (at.TABLE_CANDIDATES, at.RESPONSE_ANCHOR, at.LONGEST))
CONTEXT, ENTRIES, SPARED, GRANULE = map(tl.constexpr, (at.CONTEXT, at.ENTRIES, at.SPARED, at.GRANULE))
FOLLOWED, FORGET, WINDOW, BACK = map(tl.constexpr, (at.FOLLOWED, at.FORGET, at.WINDOW, at.BACK))
LEVELS, UNIT, FRACTION, MULTIPLIER = map(tl.constexpr, (at.LEVELS, at.UNIT, at.FRACTION, at.MULTIPLIER))
MAX_ODDS, MAX_LOG, CONTEXTS, TOKENS = map(tl.constexpr, (at.MAX_ODDS, at.MAX_LOG, of.CONTEXTS, of.TOKENS))
LENGTHS, SHARES, SUPPORTS, HIT_RATES = map(tl.constexpr, (of.LENGTHS, of.SHARES, of.SUPPORTS, of.HIT_RATES))
ORIGINS, HASHES, COARSE = map(tl.constexpr, (of.ORIGINS, of.HASHES, of.COARSE))
EVIDENCE, TOKENS_END = map(tl.constexpr, (of.EVIDENCE, of.TOKENS_END))
CORPUS_MATCH, CORPUS_CANDIDATES, CORPUS_ANCHOR = map(
    tl.constexpr, (at.CORPUS_MATCH, at.CORPUS_CANDIDATES, at.CORPUS_ANCHOR)
)
TENANT, NAMED_CORPORA, MAX_NAMED, SCOPE = map(tl.constexpr, (at.TENANT, at.NAMED_CORPORA, at.MAX_NAMED, at.SCOPE))
LONG_KEY, SHORT_KEY, SHORTEST_KEY, BOUNDS = map(tl.constexpr, (*at.KEYS, len(at.SHARE_BOUNDS)))
POWERS, PROBABILITIES, AGES = map(tl.constexpr, (at.FRACTION, 2 * at.FRACTION, 2 * at.FRACTION + at.MAX_LOG // 2))
SHARE_BOUNDS = tl.constexpr(AGES.value + at.RANKS)
"""Where parts of `FIGURES` begin, as do those of the line above."""


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
    is_response = (kinds == RESPONSE) | (kinds == RESPONSE_ALIGNED)
    is_corpus = (kinds == CORPUS) | (kinds == NAMED) | (kinds == CORPUS_ALIGNED)
    return tl.where(is_response, 2, tl.where(is_corpus, 4, 1))


@triton.jit
def log2(figures, number):
    exponent = (number * 0).to(tl.int32)
    for step in tl.static_range(5):
        exponent += tl.where((number >> exponent) >= (1 << (16 >> step)), 16 >> step, 0)
    return exponent * FRACTION + tl.load(figures + ((number << 8 >> exponent) & 255))


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
    scale = LEVELS // (2 * UNIT)
    missed = (tries - hits) * scale + PAIRS * (LEVELS - level)
    return log2(figures, hits * scale + PAIRS * level) - log2(figures, missed)


@triton.jit
def weight(figures, log_odds, ranks):
    log = larger(2 * smaller(log_odds, MAX_ODDS) + 2 * MAX_ODDS - tl.load(figures + AGES + ranks), 0)
    return tl.load(figures + POWERS + (log & (FRACTION - 1))).to(tl.int64) << (log >> 8)


@triton.jit
def probability(figures, log_odds):
    return tl.load(figures + PROBABILITIES + ((smaller(larger(log_odds, -MAX_LOG), MAX_LOG - 1) + MAX_LOG) >> 2))


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
    return (((hashed ^ token) & 0x7FFFFFFF).to(tl.int64) * MULTIPLIER >> 16) & 0x7FFFFFFF


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
    rate = (hit_rate >= LEVELS // 4).to(tl.int32) + (hit_rate >= LEVELS * 3 // 5).to(tl.int32)
    key = ((size * SHARES + share) * SUPPORTS + supported) * HIT_RATES + rate
    context = (next_hash(next_hash(owner, 0), last.to(tl.int64)) >> 4 & (HASHES - 1)).to(tl.int32) * COARSE
    context = 3 * (context + smaller(size // 2, COARSE - 1)) + (share > 2).to(tl.int32) + (share > 5).to(tl.int32)
    own = (next_hash(next_hash(owner, 0), token.to(tl.int64)) >> 4 & (HASHES - 1)).to(tl.int32)
    evidence = (key * ORIGINS + origins) * 2 + near
    own_row = 2 * own + (share > 4).to(tl.int32)
    return evidence + EVIDENCE, context + CONTEXTS, own_row + TOKENS


@triton.jit
def confidence(table, figures, evidence, contexts, tokens, mask):
    seen = log_odds(table, figures, evidence, mask)
    level = smaller(larger(probability(figures, seen), 20), LEVELS - 20)
    after = log_odds_after(table, figures, contexts, mask, level, 1)
    after += log_odds_after(table, figures, tokens, mask, level, 1)
    return probability(figures, (2 * seen + after) >> 2)


@triton.jit
def count(table, rows, hits, mask):
    mask = flags(mask)
    tl.atomic_add(table + 2 * rows, tl.where(hits, UNIT, 0), mask=mask, sem="relaxed")
    tl.atomic_add(table + 2 * rows + 1, tl.where(mask, UNIT, 0), mask=mask, sem="relaxed")
