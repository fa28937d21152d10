"""The reference of what `Lookup` learns, in plain Python: the tables of tries and hits, and confidences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specplug.match.cpu.evidence import MOST_CONTEXT_TRIES, MOST_TRIES, Table
from specplug.match.cpu.tables import Tables

Signs = tuple[int, float, int, int, bool]
"""Evidence for a token: longest match, share of votes, support, source bits, and whether a voter is near the anchor."""


class Considered(NamedTuple):
    """A token that may be drafted: the index of its parent (-1 for the context), and its rows in the tables.

    An `evidence` of -1 is that of a token of the engine's own, which is in no table.
    """

    token: int
    parent: int
    evidence: int
    context: int
    key: int


@dataclass
class Predictions:
    """The predictions of a row's next tokens."""

    hit_rate: float = 0.5
    candidate_votes: list[tuple[int, int]] = field(default_factory=list)
    considered: list[Considered] = field(default_factory=list)
    held: list[Considered] = field(default_factory=list)
    judged: list[Considered] = field(default_factory=list)

    def begin(self, candidate_votes: Sequence[tuple[int, int, int]]) -> None:
        """Clear earlier predictions.  `candidate_votes`: tokens, kinds and match lengths of candidates."""
        self.candidate_votes = [
            (token, kind * 14 + Learnt.length_class(length)) for token, kind, length in candidate_votes
        ]
        self.considered = []


class Learnt:
    """Tables of hits and tries: by kind and length of candidates, evidence, the token before, and the token itself."""

    def __init__(self) -> None:
        self.arrays = self.votes, self.evidence, self.contexts, self.tokens = Tables().arrays

    @staticmethod
    def length_class(length: int) -> int:
        """Return the class of a match length: 0 to 8, to 12, 16, 24, 40, and more."""
        return length if length <= 8 else 9 + sum(length > bound for bound in (12, 16, 24, 40))

    def weight(self, kind: int, length: int) -> float:
        """Return the square of a candidate's odds of being right."""
        odds = _odds(self.votes, kind * 14 + self.length_class(length))
        return float(odds * odds)

    def consider(self, predictions: Predictions, token: int, parent: int, last: int, owner: int, signs: Signs) -> float:
        """Record a token, and return the probability that it is right, from the weighted mean of three log-odds."""
        longest, share, support, sources, near = signs
        size = self.length_class(longest)
        shares = sum(share > bound for bound in (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.999))
        supports, hit_levels = (
            (support > 1) + (support > 3),
            (predictions.hit_rate >= 0.25) + (predictions.hit_rate >= 0.6),
        )
        evidence = int(
            np.ravel_multi_index((size, shares, supports, hit_levels, sources, int(near)), (14, 9, 3, 3, 8, 2))
        )
        context = 3 * (_hash(last, owner) * 6 + min(size // 2, 5)) + (share > 0.3) + (share > 0.85)
        key = 2 * _hash(token, owner) + (share > 0.7)
        predictions.considered.append(Considered(token, parent, evidence, context, key))
        seen = float(_odds(self.evidence, evidence))
        joint = float(np.sqrt(seen * np.sqrt(_after(self.contexts, context, seen) * _after(self.tokens, key, seen))))
        return joint / (1.0 + joint)

    def learn(self, predictions: Predictions, emitted: Sequence[int], *, drafted: bool, holds: bool) -> None:
        """Count hits and misses against the emitted tokens.

        `drafted`: there is a draft for the text before them; `holds`: it is a chain.
        """
        for token, key in predictions.candidate_votes if drafted else ():
            if token >= 0:
                self.votes[key] += (token == emitted[0], 1)
        if predictions.held:
            predictions.held = self._judge_chain(predictions, predictions.held, emitted)
        elif drafted and holds:
            predictions.held = self._judge_chain(predictions, predictions.considered, emitted)
            self._note_first(predictions, emitted)
        elif drafted:
            self._judge_tree(predictions, emitted)
            self._note_first(predictions, emitted)

    def _judge_chain(
        self, predictions: Predictions, chain: Sequence[Considered], emitted: Sequence[int]
    ) -> list[Considered]:
        """Judge a chain up to its first wrong token; return the rest if none was wrong."""
        for it, came in zip(chain, emitted, strict=False):
            self._count(predictions, it, it.token == came)
            if it.token != came:
                return []
        return list(chain[len(emitted) :])

    def _judge_tree(self, predictions: Predictions, emitted: Sequence[int]) -> None:
        parent = -1
        for came in emitted:
            after = [(k, it) for k, it in enumerate(predictions.considered) if it.parent == parent]
            for _, it in after:
                self._count(predictions, it, it.token == came)
            right = [k for k, it in after if it.token == came]
            if not right:
                break
            parent = right[0]

    def _count(self, predictions: Predictions, it: Considered, hit: bool) -> None:
        if it.evidence >= 0:
            for table, key in (self.evidence, it.evidence), (self.contexts, it.context), (self.tokens, it.key):
                table[key] += (hit, 1)
            predictions.judged.append(it)

    @staticmethod
    def _note_first(predictions: Predictions, emitted: Sequence[int]) -> None:
        if predictions.considered and predictions.considered[0].evidence >= 0:
            began_right = any(it.parent == -1 and it.token == emitted[0] for it in predictions.considered)
            predictions.hit_rate = float(np.float32(0.8 * predictions.hit_rate + (1 - 0.8) * began_right))

    def halve_large_counts(self, predictions: Predictions) -> None:
        """Halve counts that have grown large."""
        for _, key in predictions.candidate_votes:
            _halve(self.votes, key, MOST_TRIES)
        for it in predictions.judged:
            _halve(self.evidence, it.evidence, MOST_TRIES)
            _halve(self.contexts, it.context, MOST_CONTEXT_TRIES)
            _halve(self.tokens, it.key, MOST_CONTEXT_TRIES)
        predictions.judged = []


@dataclass
class EngineDraft:
    """The newest draft of the engine's own drafter for a row, and its hits and tries by position."""

    ids: list[int] = field(default_factory=list)
    counts: dict[int, list[float]] = field(default_factory=dict)


class EngineRecord:
    """How often tokens of the engine's own drafter were right, by position, in all rows."""

    def __init__(self, tokens: int) -> None:
        self.counts = [[3.0, 4.0] for _ in range(tokens)]

    def chances(self, draft: EngineDraft) -> list[float]:
        """Return the probability of each token of a draft that it is right if those before it are."""
        own = [draft.counts.get(place, [0.0, 0.0]) for place in range(len(draft.ids))]
        rates = [float(np.float32(hits) / np.float32(tries)) for hits, tries in self.counts]
        return [(hits + 8.0 * rate) / (tries + 8.0) for (hits, tries), rate in zip(own, rates, strict=False)]

    def learn(self, draft: EngineDraft, emitted: Sequence[int]) -> None:
        """Count the tokens of a draft up to the first wrong one."""
        for place, (token, came) in enumerate(zip(draft.ids, emitted, strict=False)):
            for counts in (draft.counts.setdefault(place, [0.0, 0.0]), self.counts[place]):
                counts[0] += token == came
                counts[1] += 1
            if token != came:
                break

    def forget(self, draft: EngineDraft) -> None:
        """Forget a draft, and halve counts that have grown large."""
        for place in range(len(draft.ids)):
            for counts, most in ((draft.counts.get(place, [0.0, 0.0]), 64.0), (self.counts[place], 4000.0)):
                if counts[1] > most:
                    counts[:] = counts[0] / 2, counts[1] / 2
        draft.ids = []


def _hash(token: int, owner: int) -> int:
    mixed = (token + owner * 0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93 % 2**64
    return (mixed >> 40) % 16384


def _odds(table: Table, key: int) -> np.float32:
    """Return hits over misses, each at least 0.01."""
    hits, tries = table[key]
    least = np.float32(0.01)
    odds: np.float32 = max(hits, least) / max(tries - hits, least)
    return odds


def _after(table: Table, key: int, seen: float) -> float:
    """Return hits over misses with two more tries at the odds `seen`."""
    rate = min(max(seen / (1.0 + seen), 0.005), 1.0 - 0.005)
    hits, tries = table[key].tolist()
    return float((hits + 2.0 * rate) / (tries - hits + 2.0 * (1.0 - rate)))


def _halve(table: Table, key: int, most: float) -> None:
    if table[key, 1] > most:
        table[key] /= 2
