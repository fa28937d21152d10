"""Arms of `benchmarks.corpus_cost`: batched searches for the continuation of a context, and their memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from specplug.corpus import segment as corpus_file
from specplug.corpus.documents import Document
from specplug.lookup import compiled, corpora, storage
from specplug.lookup import layout as at
from specplug.lookup.corpora import Segment

Ids = npt.NDArray[np.int32]

KEY = 64
"""Most tokens of a context that specplug compares."""

MOST = 512
"""Most contexts per batch."""

DEPTH = 18
"""Most tokens of a context that SGLang compares by default (`--speculative-ngram-max-trie-depth`)."""


class Contexts(NamedTuple):
    """Where contexts end: `text[: at[i]]`.

    Attributes:
        text: [n] int32.
        at: [m] int64.
    """

    text: Ids
    at: npt.NDArray[np.int64]

    def tails(self, chosen: slice) -> list[list[int]]:
        """Return the last tokens of some contexts, in the form that SGLang's worker passes."""
        return [self.text[end - DEPTH : end].tolist() for end in self.at[chosen]]


def contexts(text: Ids, count: int, seed: int) -> Contexts:
    """Return random contexts of a text, in the middle of its documents."""
    draw = np.random.default_rng(seed)
    inside = np.convolve(text < 0, np.ones(DEPTH), "valid") == 0  # no document ends in the last tokens
    at = np.flatnonzero(inside) + DEPTH
    return Contexts(text, draw.choice(at[at >= KEY], count).astype(np.int64))


class Ours:
    """specplug's search of a store's segments: the compiled code that its proposer calls, for a batch at a time."""

    name = "specplug"

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._numbers = corpora.Numbers()
        self._state = storage.allocate(MOST, KEY, 1, 0)
        self._texts = np.full((MOST, KEY), -1, np.int32)
        self._slots = torch.arange(MOST)
        self._ones = torch.ones(MOST, dtype=torch.int32)
        self._lengths = torch.full((MOST,), KEY, dtype=torch.int32)
        storage.begin(self._state, self._slots, self._ones, 0 * self._ones, 0 * self._ones)
        self.load(segments)
        corpora.assign(self._state, self._slots, [self._numbers.known_numbers("", [])] * MOST)
        no_ids = torch.zeros(MOST, 0, dtype=torch.int32)
        source = at.Source(
            torch.zeros(MOST, KEY, dtype=torch.int32), self._slots, 0 * self._ones, self._lengths, no_ids
        )
        compiled.ingest(self._views, self._texts, self._rows(MOST), storage.views(source))

    def load(self, segments: Sequence[Segment]) -> None:
        """Set the segments to search."""
        self._state = corpora.use(self._state, corpora.load({"": segments}, self._numbers, MOST))
        self._views = storage.views(self._state)

    def _rows(self, count: int) -> Any:
        return storage.views(at.Rows(*(it[:count] for it in (self._slots, self._ones, self._lengths, self._ones))))

    def prepare(self, requested: Contexts, chosen: slice) -> Any:
        """Prepare the data that an engine has anyway: the texts' last tokens."""
        ends = requested.at[chosen]
        return np.stack([requested.text[end - KEY : end] for end in ends])

    def place(self, prepared: Any) -> None:
        """Set the contexts as the requests' texts."""
        self._texts[: len(prepared)] = prepared
        self._requested = self._rows(len(prepared))

    def ask(self) -> None:
        """Find the best matches of each context."""
        compiled.search(self._views, self._texts, self._requested)


class Theirs:
    """SGLang's suffix automaton behind its `NgramCorpus`, asked for the smallest draft: one token."""

    name = "SGLang"

    def __init__(self, documents: Sequence[Document]) -> None:
        stand_in_for_triton()
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

        self._corpus = NgramCorpus(
            max_trie_depth=DEPTH,
            min_bfs_breadth=1,
            max_bfs_breadth=10,
            draft_token_num=2,
            match_type="BFS",
            capacity=100_000,
            external_sam_budget=1,
            external_corpus_max_tokens=1 << 30,  # 10 million by default
        )
        self.seconds_of_lists = 0.0
        began = time.perf_counter()
        self.tokens = self._corpus.load_external_corpus_named("all", self._chunks(documents))
        self._corpus.commit_external_corpus_load("all", self.tokens)
        self.seconds = time.perf_counter() - began - self.seconds_of_lists

    def _chunks(self, documents: Sequence[Document]) -> Iterator[list[int]]:
        from sglang.srt.speculative.cpp_ngram.external_corpus import SEPARATOR_TOKEN

        for number, document in enumerate(documents):
            began = time.perf_counter()
            chunk = [SEPARATOR_TOKEN] * (number > 0) + document.token_ids.tolist()
            self.seconds_of_lists += time.perf_counter() - began
            yield chunk

    def prepare(self, requested: Contexts, chosen: slice) -> Any:
        """Prepare the data that an engine has anyway."""
        tails = requested.tails(chosen)
        return [str(row) for row in range(len(tails))], tails, requested.at[chosen].tolist()

    def place(self, prepared: Any) -> None:
        """Set the contexts."""
        self._requested = prepared

    def ask(self) -> None:
        """Find the continuation of each context."""
        self._corpus.batch_get(*self._requested)


def searched(it: corpus_file.Segment) -> Segment:
    """Return a segment of a store as it is searched."""
    return Segment(it.text, it.places, it.starts, it.corpus_of, it.corpora)


def stand_in_for_triton() -> None:
    """Make SGLang importable without a GPU, as the tests do."""
    from tests.engines.sglang.launch import Configuration

    given = dict(Configuration.always)
    sys.path[:0] = given.pop("PYTHONPATH").split(os.pathsep)
    os.environ.update(given)


def memory() -> dict[str, float]:
    """Return this process's memory in MB: resident, proportional (PSS), and private."""
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) / 1e3 * 1.024
    private = found["Private_Clean"] + found["Private_Dirty"]
    shared = found["Shared_Clean"] + found["Shared_Dirty"]
    return {"rss": found["Rss"], "pss": found["Pss"], "private": private, "shared": shared,
            "anonymous": found["Anonymous"]}  # fmt: skip
