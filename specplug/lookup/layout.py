"""Memory of the lookup: constants, and all state as one tuple of tensors.

*Places* in a row's text are indices, those in the ring of responses are absolute: place p is entry p modulo the ring's
capacity, and is dead once the ring has moved on by its capacity.  A candidate's place is that of the token it predicts.
"""

from __future__ import annotations

from math import log2
from typing import Any, NamedTuple

import numpy as np

LONGEST = 64
"""Most tokens of a match."""
BLOCK = 2048
"""Tokens of a text that one program of a kernel scans."""

KEYS = (4, 2, 1)
"""Tokens by which responses are looked up; the last two share a table, as single tokens are few keys."""
ENTRIES = 8
SPARED = 2
"""Entries of a bucket, and how many of them an owner leaves to others; its texts take the rest in turn."""
GRANULE = 16
"""Tokens of the ring that have one owner; each text begins a granule, and the rest of its last one is padding."""
CONTEXT = 8
"""Most tokens before a response that are stored with it; they are matched and never drafted."""
MAX_PLACES = 1 << 30
"""Places of a ring before `clear` is due."""

CANDIDATES = 32
USED = ENTRIES - SPARED
TABLE_CANDIDATES = 2 * USED
OWN_MATCH = TABLE_CANDIDATES
OWN_ANCHOR = OWN_MATCH + 1
RESPONSE_ANCHOR = OWN_MATCH + 2
SIBLINGS = OWN_MATCH + 3
OTHER_MATCHES = SIBLINGS + USED
OTHERS_END = OTHER_MATCHES + 4
CORPUS_MATCH = OTHERS_END
CORPUS_CANDIDATES = 4
CORPUS_ANCHOR = CORPUS_MATCH + CORPUS_CANDIDATES
"""Candidates of a row by index: an owner's entries of the table with long keys, and with short ones; the best own
match; two anchors, where the text would be now in what it last followed over at least `FOLLOWED` tokens; the group's
entries of the table with long keys; for trees the next best own matches, from `SIBLINGS` on without a group; the best
matches in corpora, and the anchor there.  Without entries of long keys, those of single tokens are there."""
TREE_MATCHES = 8
"""Own matches of a tree, the best included."""
OWN, RESPONSE, CORPUS, NAMED, NEAR, ALIGNED, RESPONSE_ALIGNED, CORPUS_ALIGNED = range(8)
"""Kinds of candidates: matches, of which NAMED are in corpora that the request names; an own match near the anchor; and
the anchors."""
SOURCES = ("own text", "reference", "response memory", "corpus", "engine")
"""Names of the sources of drafted tokens, by number."""
CORPUS_SOURCE = 3
OF_ENGINE = 4
"""Numbers of corpora, and of the engine's own drafter, among these."""
FOLLOWED = 2
FORGET = 64
WINDOW = 12
BACK = 4
"""Shortest match that sets an anchor, tokens after which it is forgotten, and how far on and back it is searched."""

INDEX, KIND, PLACE, LENGTH, RANK, TOKEN, WEIGHT = range(7)
"""Columns of candidates: the length is of the match, the rank is the number of newer responses, or
`corpus_search.COPIES` times that of better places in corpora, and the rest is a vote."""

GENERATION, OWNER, START, HIT_RATE, END, ENGINE, VOTED_FOR, CHAIN_FOR, CHAIN_NEXT, CHAIN_END = range(10)
GROUP, ENTRY, PROMPT, WRITTEN, SPAN, SPAN_END, ANCHORS = range(10, 17)
SEGMENT, SEGMENT_PLACE, PLACE_AT, FOLLOWED_AT, FACTS = range(20, 25)
"""Columns of `State.slots`.

`START` is the length of the references, `END` that of the text with them, `ENGINE` the number of tokens after it that
the engine's own drafter drafted.  `HIT_RATE` is the recent rate at which first tokens were right, of `LEVELS`.
`VOTED_FOR` and `CHAIN_FOR` are the text's length at the newest votes, and before the chain's next token; 0 for none;
`CHAIN_NEXT` is 1 + the chain's last token that was right.
`GROUP` is the owner of what the slot and its siblings share, 0 for none, and `ENTRY` its entry of their buckets; tokens
from `PROMPT` on, of which those before `WRITTEN` are there, are shared in the ring from `SPAN` to `SPAN_END`.
`ANCHORS` are two pairs, of the own text and of responses: place minus length of the text, and its length when it last
followed that place, 0 for never.
`SEGMENT` is the segment of the anchor in corpora, and `SEGMENT_PLACE` its place there when the text had `PLACE_AT`
tokens; the text had `FOLLOWED_AT` when it last followed that place, 0 for never.
"""

TENANT, NAMED_CORPORA = range(2)
MAX_NAMED = 16
SCOPE = NAMED_CORPORA + MAX_NAMED
"""Columns of `State.scopes`: the number of the tenant whose corpora the slot may read, 0 for none; and the numbers of
those that its request names, 0 after them."""
SEGMENT_FACTS = 6
"""Columns of `State.segments`; see `corpora`."""

CHAIN_TOKEN, CHAIN_EVIDENCE, CHAIN_CONTEXT, CHAIN_OWN, CHAIN_PARENT, CHAIN_ROWS = *range(5), 5
"""Rows of `State.chain`."""
NODE_SURVIVAL, NODE_REACHED, NODE_TOKEN, NODE_LEVEL, NODE_SOURCE, NODE_EVIDENCE, NODE_CONTEXT, NODE_OWN = range(8)
NODE_PARENT = 8
NODE_NUMBER = 9
NODE_ROWS = 10
"""Rows of `State.nodes`: a node's survival, also after it was drafted; what it writes to a draft and a chain; and by
candidate the first candidates of the node before its token and of its own, in place of which comes the node's number.
"""
SURE = 1 << 30
LEAST_SURVIVAL = SURE // 1000
"""Steps of the probability that a drafted token is reached and right, and its least by default."""

LEVELS = 4096
"""Steps of a probability."""
UNIT = 64
"""Counts of one try."""
MAX_TRIES = 4000
MAX_TOKEN_TRIES = 200
MAX_ENGINE_TRIES = 64
HALVED_EVERY = 1024
"""Tries above which `halve` halves a row of counts, those of contexts and tokens, and those of a request's engine
tokens; and steps between its runs."""
COMMON_TRIES = 8
"""Tries at the rate of all requests that count with a request's own of the engine's tokens."""
FRACTION = 256
"""Steps of a logarithm to base 2."""
MAX_ODDS = 10 * FRACTION
MAX_LOG = 12 * FRACTION
"""Bounds of the log-odds of a vote, and of a probability."""
SHARE_BOUNDS = tuple(round(LEVELS * bound) for bound in (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.999))
"""Bounds of the classes of a token's share of the votes."""
MULTIPLIER = 0x9E3779B1
"""Factor of hashes: 2^32 divided by the golden ratio, odd."""

LOGARITHMS = np.array([round(FRACTION * log2(1 + k / FRACTION)) for k in range(FRACTION)], np.int32)
"""Fractions of the logarithm of 1 to 2."""
POWERS = np.array([round(2 ** (13 + k / FRACTION)) for k in range(FRACTION)], np.int32)
"""2^13 to 2^14 by the fraction of its logarithm."""
PROBABILITIES = np.array(
    [round(LEVELS / (1 + 2 ** -((4 * k + 2 - MAX_LOG) / FRACTION))) for k in range(MAX_LOG // 2)], np.int32
).clip(1, LEVELS - 1)
"""Levels of log-odds from -`MAX_LOG`, in steps of 4."""
RANKS = 64
AGES = np.array([round(FRACTION * log2(1 + 0.05 * rank)) for rank in range(RANKS)], np.int32)
"""What votes lose by their rank."""
FIGURES = np.concatenate(
    (LOGARITHMS, POWERS, PROBABILITIES, AGES, np.array((*SHARE_BOUNDS, 0, LEAST_SURVIVAL, OF_ENGINE), np.int32))
)
"""All of these, for kernels, and three settings for all forms."""
SHORTEST, LEAST, ENGINE_SOURCE = range(len(FIGURES) - 3, len(FIGURES))
"""Indices of these: the shortest match of a candidate, the least survival of a drafted token, at least 1, and the
number of the source of the engine's tokens."""
OFFSETS = np.array(sorted(range(-BACK, WINDOW), key=lambda k: (abs(k), -k)), np.int32)
"""Offsets from an anchor in the order of the search."""


class State(NamedTuple):
    """All memory of S slots, chains of K tokens and a ring of C tokens; tensors on one device, or their numpy views.

    Attributes:
        slots: [S, FACTS] int32, by column; see `GENERATION`.
        chain: [S, CHAIN_ROWS, K] int32, the tokens that are being judged, their rows of evidence, contexts and tokens,
            and the index of the token before each, -1 for none.  The engine's tokens have rows of all requests and of
            their own in place of the first two, and -1 for the third.
        voted: [S, 2, CANDIDATES] int32, the token that each candidate predicted, -1 for none, and its row of votes.
        counts: [N, 2] int32, hits and tries in `UNIT`s: rows of votes, evidence, contexts and tokens; then G rows of
            the engine's tokens by position, of all requests, and G of each slot.
        ring: [C] int32, finished responses; C is a power of two.
        owners: [C / GRANULE] int32, the owner of each granule, 0 for none.
        buckets: [2, C / 4, ENTRIES] int32, absolute places by hash of the tokens before them and the owner, 0 for none;
            see `KEYS`.
        end: [1] int32, the absolute place where the next response begins.
        matches: [S, L / BLOCK * M] int64, scratch of a step, by row: the M best matches in each block of the row's
            text, the best first, each as its tokens * 2^32 + its place, 0 for none; M is `TREE_MATCHES`, or 1 without
            trees.  The forms for CPUs only write the first M.
        figures: [F] int32, see `FIGURES`.
        candidates: [CANDIDATES, 7] int64, scratch for one row of the forms for CPUs.
        nodes: [S, NODE_ROWS, K, CANDIDATES] int32, scratch of a step for trees; S is 0 without trees.
        scopes: [S, SCOPE] int32, by column; see `TENANT`.
        corpus, segments, tenants, documents, corpus_matches: see `corpora.Corpora`.
    """

    slots: Any
    chain: Any
    voted: Any
    counts: Any
    ring: Any
    owners: Any
    buckets: Any
    end: Any
    matches: Any
    figures: Any
    candidates: Any
    nodes: Any
    scopes: Any
    corpus: Any
    segments: Any
    tenants: Any
    documents: Any
    corpus_matches: Any


class Rows(NamedTuple):
    """B rows of a step; their slots are distinct."""

    slots: Any  # [B] int64
    generations: Any  # [B] int32; a row neither learns nor drafts if its slot has another one
    lengths: Any  # [B] int32, tokens of each row's text in the engine, without references
    limits: Any  # [B] int32, maximum number of tokens to draft; 0 for none


class Source(NamedTuple):
    """Where a step's new tokens are, for B rows; the table may be in pinned host memory."""

    table: Any  # [R, W] int32
    rows: Any  # [B] int64, each row's row of the table
    firsts: Any  # [B] int32, the position of the token in column 0
    num_new: Any  # [B] int32, the newest tokens of the row that are new, or no longer what they were


class Drafts(NamedTuple):
    """What a step drafts; all of it is written.  A tree's nodes are ordered by survival, so parents come first.

    Rows are contiguous, and equally far apart in all tensors of K columns.
    """

    ids: Any  # [B, K] int32, padded with -1
    confidence: Any  # [B, K] float32, in multiples of 1 / `LEVELS`; 0 for padding
    sources: Any  # [B, K] int32, by `SOURCES`; -1 for padding
    lengths: Any  # [B] int32, drafted tokens
    parents: Any  # [B, K] int32, for trees: the index of the node before each, -1 for none and for padding; else [0, K]
