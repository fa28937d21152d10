"""The plain reference of `benchmarks.gpu.suffix`, row by row on a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.scan import best_match
from benchmarks.gpu.suffix import KEYS, LENGTH_BUCKETS, LONGEST, MULTIPLIER, SLOTS, Corpus, SuffixDrafts

INDEX = (1 << 32) - 1
"""Bits of an entry that are an index of the ring."""


class Candidate(NamedTuple):
    """A place in the ring that may continue a text, by its entry, and how many tokens before it match."""

    entry: int
    place: int
    length: int


class Found(NamedTuple):
    """A draft: 0 for the row's own text or 1 for the corpus, the tokens that match, and the tokens that follow."""

    source: int
    length: int
    tokens: list[int]

    @property
    def kind(self) -> int:
        """The draft's class; see `SuffixDrafts.counts`."""
        return self.source * LENGTH_BUCKETS + length_bucket(self.length)


def enter(response: Tensor, head: int, number: int, ring: Tensor, tables: Tensor) -> None:
    """Write a response, [N] int32, to the ring from `head` on, and its entries to the tables."""
    ring[head : head + len(response)] = response
    ring[head + len(response)] = -1
    for table, key_length in zip(tables, KEYS, strict=True):
        if len(response) > key_length:
            keys = response.unfold(0, key_length, 1)[:-1]
            places = buckets_of(keys, len(table)) * SLOTS + number % SLOTS
            entries = (number << 32) + head + torch.arange(key_length, len(response))
            table.view(-1).scatter_reduce_(0, places, entries, "amax")


def buckets_of(keys: Tensor, buckets: int) -> Tensor:
    """Return the buckets, [...] int64, of keys, [..., tokens] int32; there is a power of two of buckets."""
    mixed = torch.zeros(keys.shape[:-1], dtype=torch.int64)
    for token in keys.unbind(-1)[::-1]:
        mixed = (mixed ^ token) * MULTIPLIER
    return (mixed >> 32) & (buckets - 1)


def learn(slots: Tensor, num_sampled: Tensor, drafts: SuffixDrafts) -> None:
    """Count, of each row's last draft, the accepted tokens and the first one that was not."""
    for slot, sampled in zip(slots.tolist(), num_sampled.tolist(), strict=True):
        kind, drafted = drafts.last[slot].tolist()
        for position in range(min(sampled, drafted)):
            drafts.counts[kind, position] += torch.tensor([position < sampled - 1, True])


def draft(slots: Tensor, lengths: Tensor, texts: Tensor, drafts: SuffixDrafts, out: Tensor, confidence: Tensor) -> None:
    """Fill `out` and `confidence` as `SuffixDrafts.draft` does, and state what was drafted in `drafts.last`."""
    for row, slot in enumerate(slots.tolist()):
        text = texts[slot, : int(lengths[slot])]
        found = find(text, drafts.corpus, out.shape[1])
        drafted = len(found.tokens)
        out[row] = text[-1]
        out[row, :drafted] = torch.tensor(found.tokens)
        confidence[row] = confidences(drafts.counts[found.kind])
        confidence[row, drafted:] = 0
        drafts.last[slot] = torch.tensor([found.kind, drafted])


def confidences(counts: Tensor) -> Tensor:
    """Return the confidence of each position, [K] float32, by the counts of a class, [K, 2]."""
    accepted, observed = counts.float().unbind(-1)
    return (accepted + 1) / (observed + 2)


def length_bucket(length: int) -> int:
    """Return the bucket of a match's length."""
    return max(1, min(length, 6)) - 1 + (length > 6) + (length > 10) + (length > 20)


def find(text: Tensor, corpus: Corpus, draft_length: int) -> Found:
    """Return the draft for a text, [N] int32."""
    length, end = best_match(text, 1, LONGEST)
    own = Found(0, length, text[end : end + draft_length].tolist() if length else [])
    candidates = candidates_of(text, corpus)
    if not candidates:
        return own
    shared = vote(candidates, corpus.ring, draft_length)
    return shared if shared.length > own.length else own


def candidates_of(text: Tensor, corpus: Corpus) -> list[Candidate]:
    """Return the entries of the text's buckets that do match it; of those of one index the first."""
    found: dict[int, Candidate] = {}
    for table, key_length in zip(corpus.tables, KEYS, strict=True):
        if len(text) < key_length:
            continue
        for entry in table[int(buckets_of(text[-key_length:], len(table)))].tolist():
            index = entry & INDEX
            if entry < 0 or int(corpus.ring[index]) < 0:
                continue
            length = match_length(text, corpus.ring[max(0, index - LONGEST) : index])
            if length >= key_length:
                found.setdefault(index, Candidate(entry, index, length))
    return list(found.values())


def match_length(text: Tensor, before: Tensor) -> int:
    """Return how many tokens at the ends of both are equal, at most `LONGEST`."""
    most = min(len(text), len(before), LONGEST)
    differ = (text[len(text) - most :] != before[len(before) - most :]).flip(0).nonzero()
    return int(differ[0]) if len(differ) else most


def vote(candidates: Sequence[Candidate], ring: Tensor, draft_length: int) -> Found:
    """Return the chain with the best score that any length's candidates vote for; of equal ones that of the longest."""
    chains = []
    for length in {candidate.length for candidate in candidates}:
        score, tokens = chain([it for it in candidates if it.length >= length], ring, draft_length)
        chains.append((score, length, tokens))
    _, length, tokens = max(chains)
    return Found(1, length, tokens)


def chain(candidates: Sequence[Candidate], ring: Tensor, draft_length: int) -> tuple[float, list[int]]:
    """Return the tokens that candidates vote for, one by one, and their score.

    A candidate with another token, or none, has no further vote; of equally frequent tokens that of the largest entry
    wins.  The score is the sum of the running products of the shares of votes, in float32.
    """
    tokens: list[int] = []
    product, score = np.float32(1), np.float32(0)
    continued = {it: ring[it.place :][:draft_length].tolist() + [-1] * draft_length for it in candidates}
    while candidates and len(tokens) < draft_length:
        following = [continued[it][len(tokens)] for it in candidates]
        votes = Counter(token for token in following if token >= 0)
        if not votes:
            break
        *_, token = max((votes[token], it.entry, token) for it, token in zip(candidates, following, strict=True))
        product = product * np.float32(votes[token]) / np.float32(len(candidates))
        score += product
        candidates = [it for it, own in zip(candidates, following, strict=True) if own == token]
        tokens.append(token)
    return float(score), tokens
