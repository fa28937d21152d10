"""Drafts of `ngram` with the confidences of vLLM's suffix speculator, for `specplug replay` to compare with its own.

    specplug replay TRACES --tokenizer tekken --gamma 16 --batch 1 \
        --proposer ngram --policy fixed --peer benchmarks.nine_buckets:drafter

Both lines of each table then judge the same draft tokens.  The confidences are counts by source, nine buckets of the
match length and position (`simulate.survival`), learnt from each step's outcome.  The match length is that of
the longest text before a draft's first token, at most 24 tokens, in the source that the draft came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.simulate.recording import LEAST
from benchmarks.simulate.survival import BucketCounts
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import Ids
from specplug.replay.loop import Offer
from specplug.replay.run import VOCAB_SIZE
from specplug.replay.setup import Setup

LONGEST_MATCH, LONGEST_CONTEXT = 24, 1 << 17
RESPONSES, SEPARATOR = 2, -1  # the source of `ngram` that is not the request's own text


class NineBuckets:
    """An external drafter (docs/replay.md)."""

    def __init__(self, gamma: int, mode: str) -> None:
        self._setup = Setup("ngram", "fixed", gamma=gamma)
        self._engine = ReplayEngine(self._setup, max_length=LONGEST_CONTEXT, vocab_size=VOCAB_SIZE)
        self._is_fresh = True
        self.reset()

    def reset(self) -> None:
        """Drop all state."""
        if not self._is_fresh:
            self._engine.reset()
        self._is_fresh, self._counts = True, BucketCounts(self._setup.gamma)
        self._responses, self._response = np.zeros(0, np.int32), [SEPARATOR]
        self._cells, self._drafted = np.zeros((2, 1), np.int64), 0

    def start(self, request_id: str, prompt: Ids, documents: Sequence[Ids]) -> None:
        """Begin a request."""
        self._is_fresh, self._is_decoding = False, False
        self._response = [SEPARATOR, *prompt[-8:].tolist()]
        self._engine.start(0, request_id, prompt)

    def propose(self, request_id: str, context: Ids, max_tokens: int) -> tuple[list[int], list[float]]:
        """Return draft tokens and their confidences."""
        draft = self._engine.draft()
        self._is_decoding, self._drafted = True, int(draft.lengths[0])
        token_ids = draft.token_ids[0, : self._drafted].tolist()
        if token_ids:
            source = int(draft.source[0, 0])
            text = self._responses if source == RESPONSES else context
            self._cells[:] = [[source], [bucket(longest_match(text, context, token_ids[0]))]]
        return token_ids, self._counts.rates(*self._cells)[0, : self._drafted].tolist()

    def update(self, request_id: str, new_tokens: Sequence[int]) -> None:
        """Append the target's tokens, and count."""
        self._response += new_tokens
        if not self._is_decoding:
            self._engine.extend(0, new_tokens)
            return
        accepted = min(len(new_tokens) - 1, self._drafted)
        self._engine.observe([Offer(range(self._drafted))], [accepted], [new_tokens])
        self._counts.learn(*self._cells, np.array([self._drafted]), np.array([accepted]))

    def finish(self, request_id: str) -> None:
        """End a request."""
        self._engine.finish(0)
        self._responses = np.append(self._responses, np.array(self._response, np.int32))


def longest_match(text: Ids, context: Ids, following: int) -> int:
    """Return the length of the longest end of `context` that precedes `following` somewhere in `text`."""
    places = np.flatnonzero(text[1:] == following) + 1
    length = 0
    while length < min(LONGEST_MATCH, context.size):
        places = places[places > length]
        places = places[text[places - 1 - length] == context[-1 - length]]
        if not places.size:
            break
        length += 1
    return length


def bucket(length: int) -> int:
    """Return the bucket of a match length plus 1; 0 for none."""
    return int(np.searchsorted(LEAST, length, side="right"))


def drafter(gamma: int, mode: str) -> Any:
    """Return a new drafter."""
    return NineBuckets(gamma, mode)
