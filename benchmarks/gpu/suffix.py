"""Suffix decoding on the device, as an engine may bring it: the tables, the choice by device, and the statistics.

A draft continues the longest earlier occurrence of the text's end, of at most `LONGEST` tokens; among equally long ones
the last.  Where finished responses hold a longer one, they vote on the draft instead.  It ends with what it continues,
and is padded with the text's last token.  `suffix_reference` and `suffix_kernels` do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

LONGEST = 24
"""Most tokens of a match."""
KEYS = (4, 2)
"""Tokens that a bucket of each of a corpus's two tables is found by."""
SLOTS = 8
"""Entries of a bucket."""
MULTIPLIER = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed number."""
LENGTH_BUCKETS = 9
"""Match lengths 1 to 6 have a bucket each; then 7 to 10, 11 to 20, and all longer ones."""


class Corpus:
    """Finished responses in a ring of C tokens, with two tables of where the tokens after each 4 and each 2 tokens are.

    Attributes:
        ring: [C] int32; -1 ends a response, which never crosses the ring's end.
        tables: [2, N, SLOTS] int64, by `KEYS`; an entry is a response's number * 2^32 + an index of the ring, or -1.
            A response has one slot, its number modulo `SLOTS`, where the largest entry stays.

    Args:
        capacity: C, at least 8.
        device: of the tensors.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        buckets = 1 << max(4, (capacity // 4 - 1).bit_length())
        self.ring = torch.full((capacity,), -1, dtype=torch.int32, device=device)
        self.tables = torch.full((len(KEYS), buckets, SLOTS), -1, dtype=torch.int64, device=device)
        self.responses = 0
        self._head, self._operations = 0, operations_for(device)

    @classmethod
    def of(cls, responses: Sequence[Tensor], capacity: int, device: torch.device) -> Corpus:
        """Return a corpus of these responses, [N] int32 each."""
        corpus = cls(capacity, device)
        for response in responses:
            corpus.enter(response.to(device))
        return corpus

    def enter(self, response: Tensor) -> None:
        """Enter a response, [N] int32 on the corpus's device, or the last C - 1 tokens of it."""
        response = response[-(len(self.ring) - 1) :]
        if self._head + len(response) + 1 > len(self.ring):
            self._head = 0
        self._operations.enter(response, self._head, self.responses, self.ring, self.tables)
        self._head += len(response) + 1
        self.responses += 1


class SuffixDrafts:
    """Drafts of at most K tokens for rows in S slots, and what came of them; all tensors are on one device.

    Attributes:
        best: [S] int64, memory of the kernels: tokens of a row's own match * 2^32 + the index after it.
        last: [S, 2] int32, the class of each slot's last draft, and its tokens without padding.
        counts: [2 * LENGTH_BUCKETS, K, 2] int32, by class and position: accepted tokens, and those that were observed.
            A class is the source (the row's own text or the corpus) * LENGTH_BUCKETS + the match's length bucket.

    Args:
        corpus: to draft from, beside each row's own text.
        slots: S.
        draft_length: K.
        halved_every: steps after which what was counted counts half.
    """

    def __init__(self, corpus: Corpus, slots: int, draft_length: int, halved_every: int = 1024) -> None:
        device = corpus.ring.device
        self.corpus = corpus
        self.best = torch.zeros(slots, dtype=torch.int64, device=device)
        self.last = torch.zeros(slots, 2, dtype=torch.int32, device=device)
        self.counts = torch.zeros(2 * LENGTH_BUCKETS, draft_length, 2, dtype=torch.int32, device=device)
        self._steps, self._halved_every, self._operations = 0, halved_every, operations_for(device)

    def draft(
        self, slots: Tensor, lengths: Tensor, texts: Tensor, num_sampled: Tensor, out: Tensor, confidence: Tensor
    ) -> None:
        """Learn from the verdict on the last drafts, and draft.

        Args:
            slots: [B] int32 or int64, of each row.
            lengths: [S] int32.
            texts: [S, L] int32.
            num_sampled: [B] int32, tokens that each row emitted since its last draft, of which all but one were drafts.
            out: [B, K] int64, to fill.
            confidence: [B, K] float32, to fill: (accepted + 1) / (observed + 2) of each token's class and position, and
                0 for padding.
        """
        self._steps += 1
        self._operations.learn(slots, num_sampled, self)
        if self._steps % self._halved_every == 0:
            self.counts >>= 1
        self._operations.draft(slots, lengths, texts, self, out, confidence)


def operations_for(device: torch.device) -> ModuleType:
    """Return the module of Triton kernels for a GPU, or the reference."""
    if device.type == "cuda":
        from benchmarks.gpu import suffix_kernels

        return suffix_kernels
    from benchmarks.gpu import suffix_reference

    return suffix_reference
