"""Random conversations, fed to a `Lookup` and to its plain reference."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specplug.match.cpu.corpus_index import IndexSegment
from specplug.match.cpu.locks import release, take
from specplug.match.cpu.lookup import Lookup
from specplug.match.cpu.sorting import sorted_places
from specplug.match.cpu.texts import NO_TEXT
from specplug.match.options import LookupSettings
from specplug.types.draft import Draft as TensorDraft
from tests.match.reference.lookup import Draft, ReferenceLookup

POISON = 10**9 + 7


def poisoned(batch_size: int, draft_length: int, trees: bool) -> TensorDraft:
    """Return a draft in memory that holds poison."""
    draft = TensorDraft.allocate(batch_size, draft_length, trees=trees)
    for tensor in (draft.token_ids, draft.source, draft.parents):
        if tensor is not None:
            tensor.fill_(POISON)
    draft.confidence.fill_(torch.nan)
    return draft


@dataclass
class Client:
    """A `Lookup` with the interface of its reference, and poison in all memory that must not be read."""

    lookup: Lookup
    draft_length: int
    trees: bool
    wide: int = 0  # spare columns of the buffers

    def ingest(self, slots: list[int], new: list[list[int]], lengths: list[int]) -> None:
        """Put the new tokens into an otherwise poisoned table, each row in its own window."""
        shift = [max(0, length - len(tokens) - 1) for tokens, length in zip(new, lengths, strict=True)]
        table = torch.full((len(slots) + 1, max(map(len, new), default=0) + 3), POISON, dtype=torch.int32)
        rows = list(range(len(slots), 0, -1))
        for row, tokens, length, first in zip(rows, new, lengths, shift, strict=True):
            table[row, length - len(tokens) - first : length - first] = torch.tensor(tokens, dtype=torch.int32)
        ints = [torch.tensor(it, dtype=torch.int32) for it in (lengths, list(map(len, new)), shift)]
        self.lookup.ingest(torch.tensor(slots), table, torch.tensor(rows), *ints)

    def fill(self, slots: list[int], limits: list[int], engine_ids: list[list[int]] | None = None) -> TensorDraft:
        """Return the tensors of a draft, which held poison before."""
        given = None if engine_ids is None else torch.tensor(engine_ids, dtype=torch.int32)
        draft = poisoned(len(slots), self.draft_length + self.wide, self.trees)
        self.lookup.propose(torch.tensor(slots), torch.tensor(limits, dtype=torch.int32), draft, given)
        return draft

    def step(self, slots: list[int], new: list[list[int]], lengths: list[int], limits: list[int]) -> TensorDraft:
        """Ingest and propose."""
        self.ingest(slots, new, lengths)
        return self.fill(slots, limits)

    def propose(self, slots: list[int], limits: list[int], engine_ids: list[list[int]] | None = None) -> list[Draft]:
        """Return drafts; what lies beyond them in their buffers stays poison, or is of a draft that did not stand."""
        filled = self.fill(slots, limits, engine_ids)
        ids, confidence, sources = filled.token_ids, filled.confidence, filled.source
        drafts = []
        for row, n in enumerate(filled.lengths.tolist()):
            assert n <= min(max(limits[row], 0), self.draft_length)
            end = n if engine_ids is None else self.draft_length
            assert (ids[row, end:] == POISON).all()
            assert confidence[row, end:].isnan().all()
            assert (sources[row, end:] == POISON).all()
            above = [k - 1 for k in range(n)] if filled.parents is None else filled.parents[row, :n].tolist()
            levels, drafted_by = confidence[row, :n].tolist(), sources[row, :n].tolist()
            drafts.append(Draft(ids[row, :n].tolist(), levels, drafted_by, above))
        return drafts


@contextmanager
def held(lookup: Any) -> Iterator[None]:
    """Hold a lookup's flag, which keeps steps in a stream away from what all slots share."""
    take(lookup.responses.flag)
    try:
        yield
    finally:
        release(lookup.responses.flag)


def both(
    slots: int, capacity: int, draft_length: int, options: LookupSettings, *, trees: bool, engine_tokens: int = 0
) -> tuple[Client, ReferenceLookup]:
    """Return what is tested and what it must equal."""
    shape = slots, capacity, draft_length, options
    fast = Lookup(*shape, trees=trees, engine_tokens=engine_tokens, engine_source=4)
    return Client(fast, draft_length, trees, wide=2), ReferenceLookup(*shape, trees=trees, engine_tokens=engine_tokens)


def segment_of(
    documents: Sequence[tuple[str, Sequence[Sequence[int]]]], cap: int = 64, dead: Collection[int] = ()
) -> IndexSegment:
    """Return a segment of documents, each a corpus's name and texts; those numbered in `dead` are removed."""
    text, starts, corpora = [NO_TEXT], [], sorted({corpus for corpus, _ in documents})
    for _, texts in documents:
        starts.append(len(text))
        for tokens in texts:
            text += [*tokens, NO_TEXT]
    ids, flags = np.array(text, np.int32), np.array([k in dead for k in range(len(documents))], np.uint8)
    corpus_of = np.array([corpora.index(corpus) for corpus, _ in documents], np.int32)
    places, bounds = sorted_places(ids, cap), np.array([*starts, len(text)], np.int64)
    return IndexSegment(ids, places, bounds, corpus_of, corpora, flags if dead else None)


class Talk:
    """Clients' random actions: starts, steps in any batch, texts taken back, gaps, ends."""

    def __init__(self, seed: int, slots: int, capacity: int) -> None:
        self.rng, self.slots, self.capacity = random.Random(seed), slots, capacity
        self.alphabet = self.rng.choice([2, 3, 6, 20])
        self.songs = [self.tokens(self.rng.randrange(2, 40)) for _ in range(3)]
        self.length = [0] * slots

    def tokens(self, n: int) -> list[int]:
        """Return tokens at random, seldom what is no text."""
        return [self.rng.choice([-1, -2]) if self.rng.random() < 0.02 else self.rng.randrange(self.alphabet)
                for _ in range(n)]  # fmt: skip

    def lines(self) -> list[int]:
        """Return part of what is often said, or anything."""
        if self.rng.random() < 0.3:
            return self.tokens(self.rng.randrange(1, 9))
        song = self.rng.choice(self.songs)
        at = self.rng.randrange(len(song))
        return song[at : at + self.rng.randrange(1, 9)]

    def owner(self) -> str | None:
        """Return who asks."""
        return self.rng.choice(["a", "b", "", None])

    def engine_draft(self, text: Sequence[int], n: int) -> list[int]:
        """Return n tokens, often what has followed the last token of a text before, or some of that; at times fewer."""
        places = [place for place in range(1, len(text)) if text[place - 1] == text[-1]]
        copied = text[self.rng.choice(places) :][: self.rng.randrange(n + 1)] if places else []
        ids = [*copied, *(self.rng.randrange(self.alphabet) for _ in range(n))][:n]
        return [max(0, token) if self.rng.random() < 0.95 else -1 for token in ids]

    def batch(self) -> tuple[list[int], list[list[int]], list[int], list[int]]:
        """Return the slots of a step, their new tokens, their lengths with these, and limits."""
        slots = self.rng.sample(range(self.slots), self.rng.randrange(1, self.slots + 1))
        new = [self.lines() if self.rng.random() < 0.9 else [] for _ in slots]
        for slot, tokens in zip(slots, new, strict=True):
            if tokens and self.rng.random() < 0.05:  # taken back, or a gap
                self.length[slot] = max(0, self.length[slot] + self.rng.randrange(-9, 4))
            self.length[slot] += len(tokens)
        return slots, new, [self.length[slot] for slot in slots], [self.rng.choice([0, 1, 3, 99]) for _ in slots]

    def references(self) -> list[list[int]]:
        """Return what a request may bring along."""
        return [self.lines() * 3 for _ in range(self.rng.choice([0, 0, 1, 3]))]

    def segments(self, cap: int) -> dict[str, list[IndexSegment]]:
        """Generate the contents of a corpus index."""
        rng = self.rng
        return {
            tenant: [
                segment_of(
                    [(rng.choice("xyz"), [self.lines() * rng.choice([1, 3]) for _ in range(rng.choice([1, 1, 2]))])
                     for _ in range(documents)],
                    cap,
                    dead=[k for k in range(documents) if rng.random() < 0.2] if rng.random() < 0.5 else (),
                )
                for documents in rng.choices([1, 3, 9], k=rng.choice([1, 1, 2]))
            ]
            for tenant in rng.choice([[""], ["", "t"], ["t", "u", ""]])
        }  # fmt: skip

    def corpora(self) -> list[str]:
        """Return the corpora that a request names."""
        return self.rng.choice([[], [], ["x"], ["z", "nowhere", "x"]])

    def tenant(self) -> str | None:
        """Return whose corpora a request sees."""
        return self.rng.choice(["", "", "t", "v", None])
