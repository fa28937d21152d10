"""The reference of `candidates` in plain Python: finds a row's candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specplug.match.cpu.candidates import BACK, FOLLOWED, FORGET_ANCHOR, WINDOW
from specplug.match.cpu.texts import MOST_CANDIDATES, NO_TEXT
from specplug.match.options import LookupSettings
from tests.match.reference.corpus_index import ReferenceCorpusIndex
from tests.match.reference.learning import EngineDraft, Predictions
from tests.match.reference.recency import candidates, kept, key_of
from tests.match.reference.responses import Memory

OWN, RESPONSE, CORPUS, NAMED = 0, 1, 2, 3
NEAR, ALIGNED = 4, 8


class Voter(NamedTuple):
    """A candidate: the token at place `at` may come next, because `length` tokens before it match."""

    at: int
    length: int
    kind: int
    sibling: Row | None = None


@dataclass
class Row:
    """A slot: its references, NO_TEXT after each, and its own text from `start` on."""

    text: list[int]
    start: int
    owner: int
    tenant: str | None = None
    named: Sequence[str] = ()
    fits: bool = True
    anchors: list[int] = field(default_factory=lambda: [0, 0, 0])
    ages: list[int] = field(default_factory=lambda: [0, 0, 0])
    bounds: tuple[int, int] = (0, 0)
    drafted_for: int = -1
    shared: int = 0
    siblings: list[Row] = field(default_factory=list)
    predictions: Predictions = field(default_factory=Predictions)
    engine: EngineDraft = field(default_factory=EngineDraft)


class Gathering:
    """Finds a row's voters."""

    def __init__(self, settings: LookupSettings, memory: Memory) -> None:
        self.settings, self.memory = settings, memory
        self.corpus_index = ReferenceCorpusIndex({}, settings.max_n)

    def first(self, row: Row) -> list[Voter]:
        """Return the voters for the token after a row's text."""
        voters = self._texts(row, [])
        voters = self._align(row, self._align(row, voters, OWN), RESPONSE)
        voters += self._siblings(row, [])
        return voters + self._align_corpus(row, self._corpus_voters(row, []))

    def anew(self, row: Row, drafted: list[int]) -> list[Voter]:
        """Return new voters for the token after a draft that no voter continues."""
        return self._texts(row, drafted) + self._siblings(row, drafted) + self._corpus_voters(row, drafted)

    def predicted(self, row: Row, voter: Voter, drafted: list[int]) -> int:
        """Return the token at a voter's place."""
        if voter.kind & 3 >= CORPUS:
            return self.corpus_index.token(voter.at)
        if voter.sibling is not None:
            text = voter.sibling.text
        else:
            text = row.text + drafted if voter.kind & 3 == OWN else self.memory.text
        return max(text[voter.at], NO_TEXT) if voter.at < len(text) else NO_TEXT

    def _texts(self, row: Row, drafted: list[int]) -> list[Voter]:
        """Return all earlier places that match the text and its draft, those of own text first."""
        text, cap, found = row.text + drafted, self.settings.max_n, []
        if row.fits or drafted:
            places = [p for p in range(1, len(row.text) + bool(drafted)) if row.text[p - 1] >= 0]
            own = candidates(text, places, key_of(text, len(text), cap), cap)
            found = [(OWN, *candidate) for candidate in kept(own, MOST_CANDIDATES)]
        if row.owner and self.memory.end:
            context = key_of(text, len(text), cap)
            places = self.memory.places_of(row.owner, cap)
            remembered = candidates(self.memory.text, places, context, cap)
            found += [(RESPONSE, *candidate) for candidate in kept(remembered, MOST_CANDIDATES)]
        return [Voter(place, length, kind) for kind, place, length in found if length >= self.settings.min_n]

    def _siblings(self, row: Row, drafted: list[int]) -> list[Voter]:
        """Return the places in the outputs of the row's siblings that match the text and its draft."""
        text, cap, voters = row.text + drafted, self.settings.max_n, []
        for sibling in row.siblings:
            places = [p for p in range(1, len(sibling.text) + 1) if sibling.text[p - 1] >= 0]
            found = kept(candidates(sibling.text, places, key_of(text, len(text), cap), cap), MOST_CANDIDATES)
            voters += [
                Voter(at, length, RESPONSE, sibling)
                for at, length in found
                if at > sibling.shared and length >= self.settings.min_n
            ]
        return voters[:MOST_CANDIDATES]

    def _corpus_voters(self, row: Row, drafted: list[int]) -> list[Voter]:
        text, cap = row.text + drafted, self.settings.max_n
        found = self.corpus_index.nearest(row.tenant, row.named, key_of(text, len(text), cap), cap)
        voters = [Voter(it.at, it.length, NAMED if it.named else CORPUS) for it in found]
        return [voter for voter in voters if voter.length >= self.settings.min_n]

    def _align(self, row: Row, voters: list[Voter], source: int) -> list[Voter]:
        """Continue to follow a text after it diverges; see `aligning`."""
        text = row.text if source == OWN else self.memory.text
        stop = len(text) if source == OWN else self.memory.end
        mine = [voter for voter in voters if voter.kind & 3 == source]
        longest = max((voter.length for voter in mine), default=0)
        if longest >= FOLLOWED:
            row.anchors[source] = [voter.at for voter in mine if voter.length == longest][-1]
            row.ages[source] = 0
            return voters
        anchor = row.anchors[source]
        if not 0 < anchor < stop or row.ages[source] >= FORGET_ANCHOR:
            return voters
        if source == RESPONSE and (row.owner == 0 or stop - anchor > self.memory.size // 2):
            return voters
        around = [p for p in _around(anchor) if p > 1 or p == anchor]
        readable = [p for p in around if p < stop and (source == OWN or self.memory.owners[p] == row.owner)]
        after = [p for p in readable if text[p - 1] == row.text[-1] >= 0]
        if not after and anchor not in readable:
            return voters
        row.anchors[source] = place = after[0] if after else anchor
        near = [v.kind == source and abs(v.at - place) < WINDOW for v in voters]
        return self._with_aligned(voters, near, Voter(place, int(bool(after)), source + ALIGNED))

    def _align_corpus(self, row: Row, voters: list[Voter]) -> list[Voter]:
        if voters and voters[0].length >= FOLLOWED:
            row.anchors[CORPUS], row.ages[CORPUS] = voters[0].at, 0
            row.bounds = self.corpus_index.bounds(voters[0].at)
            return voters
        (low, high), anchor = row.bounds, row.anchors[CORPUS]
        if not low < anchor < high or row.ages[CORPUS] >= FORGET_ANCHOR:
            return voters
        inside = [p for p in _around(anchor) if low < p < high]
        after = [p for p in inside if self.corpus_index.token(p - 1) == row.text[-1] >= 0]
        row.anchors[CORPUS] = place = after[0] if after else anchor
        near = [low < v.at < high and abs(v.at - place) < WINDOW for v in voters]
        return self._with_aligned(voters, near, Voter(place, int(bool(after)), CORPUS + ALIGNED))

    def _with_aligned(self, voters: list[Voter], near: list[bool], aligned: Voter) -> list[Voter]:
        """Return the voters, marking those in `near`, with the aligned one added unless it is among them."""
        seen = any(is_near and voter.at == aligned.at for is_near, voter in zip(near, voters, strict=True))
        marked = [v._replace(kind=v.kind + NEAR * is_near) for is_near, v in zip(near, voters, strict=True)]
        return marked if seen or aligned.length < self.settings.min_n else [*marked, aligned]


def _around(anchor: int) -> list[int]:
    """Return the places around `anchor` to search, in order."""
    places = [anchor]
    for distance in range(1, WINDOW):
        places += [anchor + distance] + [anchor - distance] * (distance <= BACK)
    return places
