"""Memory of the lookup: constants, and all state as one tuple of tensors.

*Places* in a row's text are indices, those in the ring of responses are absolute: place p is entry p modulo the ring's
capacity, and is dead once the ring has moved on by its capacity.  A candidate's place is that of the token it predicts.
"""

from __future__ import annotations

from math import log2
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specplug.lookup.counts import CONTEXTS, start_counts

LONGEST = 64
"""Most tokens of a match."""
BLOCK = 2048
"""Tokens of a text that one program of a kernel scans."""

KEYS = (4, 2)
"""Tokens by which the two hash tables of responses are searched."""
ENTRIES = 8
SPARED = 2
"""Entries of a bucket, and how many of them an owner leaves to others; its texts take the rest in turn."""
GRANULE = 16
"""Tokens of the ring that have one owner; each text begins a granule, and the rest of its last one is padding."""
CONTEXT = 8
"""Most tokens before a response that are stored with it; they are matched and never drafted."""
MOST_PLACES = 1 << 30
"""Places of a ring before `clear` is due."""

CANDIDATES = 32
TABLE_CANDIDATES = 16
OWN_MATCH = 16
OWN_ANCHOR = 17
RESPONSE_ANCHOR = 18
"""Candidates of a row by index: entries of the table with long keys and of the other; the own match; and two anchors,
where the text would be now in what it last followed over at least `FOLLOWED` tokens."""
OWN, RESPONSE, NEAR, ALIGNED, RESPONSE_ALIGNED = range(5)
"""Kinds of candidates: matches; an own match near the anchor; and the anchors."""
SOURCES = ("own text", "reference", "response memory")
"""Names of the sources of drafted tokens, by number."""
FOLLOWED = 2
FORGET = 64
WINDOW = 12
BACK = 4
"""Shortest match that sets an anchor, tokens after which it is forgotten, and how far on and back it is searched."""

INDEX, KIND, PLACE, LENGTH, RANK, TOKEN, WEIGHT = range(7)
"""Columns of candidates: the length is of the match, the rank is the number of newer responses, the rest is a vote."""

GENERATION, OWNER, START, HIT_RATE, VOTED_FOR, CHAIN_FOR, CHAIN_NEXT, CHAIN_END, ANCHORS, FACTS = *range(9), 12
"""Columns of `State.slots`.

`START` is the length of the references.  `HIT_RATE` is the recent rate at which first tokens were right, of `LEVELS`.
`VOTED_FOR` and `CHAIN_FOR` are the text's length at the newest votes, and before the chain's next token; 0 for none.
`ANCHORS` are two pairs, of the own text and of responses: place minus length of the text, and its length when it last
followed that place, 0 for never.
"""

LEVELS = 4096
"""Steps of a probability."""
UNIT = 64
"""Counts of one try."""
MOST_TRIES = 4000
MOST_TOKEN_TRIES = 200
HALVED_EVERY = 1024
"""Tries above which `halve` halves a row of counts, those of contexts and tokens; and steps between its runs."""
FRACTION = 256
"""Steps of a logarithm to base 2."""
MOST_ODDS = 10 * FRACTION
MOST_LOG = 12 * FRACTION
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
    [round(LEVELS / (1 + 2 ** -((4 * k + 2 - MOST_LOG) / FRACTION))) for k in range(MOST_LOG // 2)], np.int32
).clip(1, LEVELS - 1)
"""Levels of log-odds from -`MOST_LOG`, in steps of 4."""
AGES = np.array([round(FRACTION * log2(1 + 0.05 * rank)) for rank in range(TABLE_CANDIDATES)], np.int32)
"""What the votes of responses lose by their rank, from the newest."""
FIGURES = np.concatenate((LOGARITHMS, POWERS, PROBABILITIES, AGES, np.array(SHARE_BOUNDS, np.int32)))
"""All of these, for kernels."""
OFFSETS = np.array(sorted(range(-BACK, WINDOW), key=lambda k: (abs(k), -k)), np.int32)
"""Offsets from an anchor in the order of the search."""


class State(NamedTuple):
    """All memory of S slots, chains of K tokens and a ring of C tokens; tensors on one device, or their numpy views.

    Attributes:
        slots: [S, FACTS] int32, by column; see `GENERATION`.
        chain: [S, 4, K] int32, the tokens that are being judged, and their rows of evidence, contexts and tokens.
        voted: [S, 2, CANDIDATES] int32, the token that each candidate predicted, -1 for none, and its row of votes.
        counts: [N, 2] int32, hits and tries in `UNIT`s: rows of votes, evidence, contexts and tokens.
        ring: [C] int32, finished responses; C is a power of two.
        owners: [C / GRANULE] int32, the owner of each granule, 0 for none.
        buckets: [2, C / 4, ENTRIES] int32, absolute places by hash of the tokens before them and the owner; 0 for none.
        end: [1] int32, the absolute place where the next response begins.
        matches: [S, L / BLOCK] int64, scratch of a step, by row: the best match in each block of the row's text, its
            tokens * 2^32 + its place.
        figures: [F] int32, see `FIGURES`.
        found: [CANDIDATES, 7] int64, scratch for one row of the forms for CPUs.
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
    found: Any


class Rows(NamedTuple):
    """B rows of a step; their slots are distinct."""

    slots: Any  # [B] int64
    generations: Any  # [B] int32; a row neither learns nor drafts if its slot has another one
    lengths: Any  # [B] int32, tokens of each row's text, its references included
    limits: Any  # [B] int32, most tokens to draft; 0 for none


class Drafts(NamedTuple):
    """What a step drafts; all of it is written."""

    ids: Any  # [B, K] int64, padded with the text's last token, or 0 if that is none
    confidence: Any  # [B, K] float32, in multiples of 1 / `LEVELS`; 0 for padding
    sources: Any  # [B, K] int32, by `SOURCES`; -1 for padding
    lengths: Any  # [B] int32, drafted tokens


def allocate(slots: int, length: int, draft_length: int, ring: int, device: torch.device | str = "cpu") -> State:
    """Return the state for S slots, texts of at most L tokens and drafts of K, with room for C response tokens.

    C is rounded up to a power of two, at least 256.
    """
    capacity = 1 << max(8, (ring - 1).bit_length())

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return State(
        slots=zeros(slots, FACTS),
        chain=zeros(slots, 4, draft_length),
        voted=zeros(slots, 2, CANDIDATES),
        counts=torch.from_numpy(start_counts(UNIT)).to(device),
        ring=zeros(capacity),
        owners=zeros(capacity // GRANULE),
        buckets=zeros(len(KEYS), capacity // 4, ENTRIES),
        end=zeros(1),
        matches=zeros(slots, -(-length // BLOCK), dtype=torch.int64),
        figures=torch.from_numpy(FIGURES).to(device),
        found=zeros(CANDIDATES, 7, dtype=torch.int64),
    )


def clear(state: State) -> None:
    """Forget all responses; due when `MOST_PLACES` are near, or when a server forgets."""
    for tensor in (state.owners, state.buckets, state.end):
        tensor.zero_()


def begin(state: State, slots: Tensor, generations: Tensor, owners: Tensor, starts: Tensor) -> None:
    """Reset slots, [N] int64, for new requests of these generations, owners and lengths of references, [N] int32."""
    facts = torch.zeros(len(slots), FACTS, dtype=torch.int32, device=slots.device)
    facts[:, : HIT_RATE + 1] = torch.stack((generations, owners, starts, torch.full_like(starts, LEVELS // 2)), 1)
    state.slots[slots] = facts


def halve(state: State) -> None:
    """Halve the rows of counts with many tries, so that older ones count less."""
    for rows, most in ((state.counts[:CONTEXTS], MOST_TRIES), (state.counts[CONTEXTS:], MOST_TOKEN_TRIES)):
        rows >>= (rows[:, 1:] > most * UNIT).int()


def views(memory: Any) -> Any:
    """Return numpy views of tensors on the CPU, which the forms for CPUs take."""
    return type(memory)(*(tensor.numpy() for tensor in memory))


def bytes_needed(slots: int, length: int, draft_length: int, ring: int) -> int:
    """Return the bytes of a state; see `allocate`."""
    return sum(it.numel() * it.element_size() for it in allocate(slots, length, draft_length, ring, "meta"))
