"""The reference of `Lookup` in plain Python: matches by brute force, sharing only constants with the kernels.

Sums are computed in the same order and precision, so that drafts and confidences are equal to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from specplug.match.cpu.corpus_index import IndexSegment
from specplug.match.cpu.lookup import RESPONSE_CONTEXT
from specplug.match.cpu.recency import GRANULE
from specplug.match.cpu.rows import MOST_SIBLINGS
from specplug.match.cpu.texts import NO_TEXT
from specplug.match.options import LookupSettings
from tests.match.reference.candidates import CORPUS, NEAR, OWN, Gathering, Row, Voter
from tests.match.reference.corpus_index import ReferenceCorpusIndex
from tests.match.reference.learning import Considered, EngineRecord, Learnt
from tests.match.reference.responses import Memory


class Draft(NamedTuple):
    """A row's draft.  Parents are token indices, -1 for the context; in a chain, the parent is the token before.

    `sources` are the sources of the tokens: 0 own text, 1 a reference, 2 responses, 3 corpora.
    """

    ids: list[int]
    confidences: list[float]
    sources: list[int]
    parents: list[int]


class Prediction(NamedTuple):
    """A token that voters predict; `origin` is the place of the best of them in the row's own text, if any."""

    token: int
    score: float
    longest: int
    origin: int
    support: int
    sources: int
    near: bool


class Node(NamedTuple):
    """A token of a tree, or its root: the path of tokens to it, its voters, and the path's survival probability."""

    path: list[int]
    voters: list[Voter]
    survival: float
    entry: int


class Offer(NamedTuple):
    """A token that may extend a tree after node number `above`."""

    chance: float
    above: int
    token: int
    source: int


class ReferenceLookup:
    """See `Lookup`.  Rows are lists of tokens; a slot's text takes at most `capacity` tokens."""

    def __init__(
        self,
        max_slots: int,
        capacity: int,
        draft_length: int,
        settings: LookupSettings,
        *,
        trees: bool,
        engine_tokens: int = 0,
    ) -> None:
        self.settings, self.trees = settings, trees
        self.capacity, self.draft_length = capacity, draft_length
        self.most_considered = 6 * (draft_length + 1)
        least = max(settings.memory_tokens, 16 * settings.max_n, 16 * GRANULE)
        self.memory, self.learnt = Memory(1 << (least - 1).bit_length()), Learnt()
        self.rows = [Row([], 0, 0) for _ in range(max_slots)]
        self.engine = EngineRecord(engine_tokens)
        self.rings: dict[str, list[int]] = {}
        self.names: list[str] = []
        self.gathering = Gathering(settings, self.memory)
        self.loaded: set[tuple[str, str]] = set()

    def load(self, tenants: Mapping[str, Sequence[IndexSegment]]) -> None:
        """Replace the segments to draft from."""
        self.gathering.corpus_index = ReferenceCorpusIndex(tenants, self.settings.max_n)
        self.loaded |= {(name, corpus) for name, own in tenants.items() for it in own for corpus in it.corpora}
        for row in self.rows:
            row.anchors[2], row.bounds = 0, (0, 0)

    def start(
        self,
        slot: int,
        *,
        owner: str | None = None,
        references: Sequence[Sequence[int]] = (),
        tenant: str | None = None,
        corpora: Sequence[str] = (),
    ) -> None:
        """Begin a text in a slot."""
        self.leave(slot)
        text = [token for reference in references for token in (*reference, NO_TEXT)][: self.capacity // 2]
        if text:
            text[-1] = NO_TEXT
        named = [name for name in corpora if (tenant, name) in self.loaded]
        self.rows[slot] = Row(text, len(text), 0 if owner is None else self._owner(owner), tenant, named)
        self.rows[slot].tenant = tenant if any(tenant == name for name, _ in self.loaded) else None

    def join(self, slot: int, group: str, prompt_length: int) -> None:
        """Let a slot and the others of a group draft from each other's outputs."""
        ring = self.rings.setdefault(group, [])
        ring.insert(0, slot)
        self.rows[slot].shared = self.rows[slot].start + prompt_length

    def leave(self, slot: int) -> None:
        """Take a slot out of its group, if it is in one."""
        for ring in self.rings.values():
            if slot in ring:
                ring.remove(slot)

    def _siblings(self, slot: int) -> list[Row]:
        ring = next((ring for ring in self.rings.values() if slot in ring), [slot])
        at = ring.index(slot)
        return [self.rows[other] for other in (*ring[at + 1 :], *ring[:at])][:MOST_SIBLINGS]

    def remember(self, slot: int, owner: str, begin: int, end: int) -> None:
        """Store tokens `begin` to `end` of a slot's own text as a response of `owner`."""
        own = self.rows[slot].text[self.rows[slot].start :]
        end = min(end, len(own))
        if self.settings.memory_tokens and end - begin > 1:
            most = min(RESPONSE_CONTEXT, self.settings.max_n)
            self.memory.add(self._owner(owner), own[max(0, begin - most) : begin], own[begin:end])

    def _owner(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name) + 1

    def ingest(self, slots: Sequence[int], new: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        """Ingest each row's newest tokens, after which its own text has `lengths` tokens, and learn from them."""
        batch = [(self.rows[slot], tokens, length) for slot, tokens, length in zip(slots, new, lengths, strict=True)]
        batch = [(row, tokens, length) for row, tokens, length in batch if tokens or row.start + length > self.capacity]
        for row, tokens, length in batch:
            if tokens and len(row.text) == row.start + length - len(tokens):
                drafted = row.drafted_for == len(row.text)
                self.learnt.learn(row.predictions, tokens, drafted=drafted, holds=not self.trees)
                if drafted:
                    self.engine.learn(row.engine, tokens)
            elif tokens:
                row.predictions.held = []
        for row, tokens, _ in batch:
            if tokens:
                self.learnt.halve_large_counts(row.predictions)
            if tokens and row.drafted_for >= 0:
                self.engine.forget(row.engine)
                row.drafted_for = -1
        for row, tokens, length in batch:
            row.fits = row.start + length <= self.capacity
            if row.fits:
                self._append(row, tokens, row.start + length - len(tokens))

    def _append(self, row: Row, tokens: Sequence[int], begin: int) -> None:
        if begin < len(row.text):
            row.anchors = [0, 0, 0]
        row.text = row.text[:begin] + [NO_TEXT] * (begin - len(row.text)) + list(tokens)
        row.ages = [age + len(tokens) for age in row.ages]
        row.anchors = [anchor + len(tokens) if anchor else 0 for anchor in row.anchors]

    def propose(
        self, slots: Sequence[int], limits: Sequence[int], engine_ids: Sequence[list[int]] | None = None
    ) -> list[Draft]:
        """Return the rows' drafts; `engine_ids` are those of the engine's own drafter."""
        given = engine_ids or [[] for _ in slots]
        for slot in slots:
            self.rows[slot].siblings = self._siblings(slot)
        return [
            self._propose(self.rows[slot], min(limit, self.draft_length), ids)
            for slot, limit, ids in zip(slots, limits, given, strict=True)
        ]

    def _propose(self, row: Row, limit: int, engine_ids: list[int]) -> Draft:
        if limit <= 0 or len(row.text) == row.start:
            return Draft([], [], [], [])
        voters = self.gathering.first(row)
        row.predictions.begin(
            [(self.gathering.predicted(row, voter, []), voter.kind, voter.length) for voter in voters]
        )
        row.drafted_for = len(row.text)
        if self.trees:
            return self._tree(row, voters, limit)
        draft = self._chain(row, voters, limit, Draft([], [], [], []))
        given = list(takewhile(lambda token: token >= 0, engine_ids[:limit]))
        if not given:
            return draft
        row.engine.ids = given
        chances = self.engine.chances(row.engine)
        if not _worth(chances) > _worth(draft.confidences[: len(given)]):
            return draft
        head = Draft(given, _rounded(chances), [4] * len(given), list(range(-1, len(given) - 1)))
        if draft.ids[: len(given)] == given:
            return Draft(*(start + it[len(given) :] for start, it in zip(head, draft, strict=True)))
        row.predictions.considered = [Considered(token, k - 1, -1, 0, 0) for k, token in enumerate(given)]
        return self._chain(row, [], limit, head)

    def _vote(self, row: Row, voters: list[Voter], drafted: list[int]) -> list[Prediction]:
        predictions: dict[int, Prediction] = {}
        rank, before = 0, -1
        for voter in voters:
            source = voter.kind & 3
            rank, before = rank + 1 if source == before else 0, source
            token = self.gathering.predicted(row, voter, drafted)
            if token < 0:
                continue
            weight = self.learnt.weight(voter.kind, voter.length)
            if voter.kind < NEAR:
                weight /= 1.0 + (0.3 if source >= CORPUS else 0.05) * rank
            prediction = predictions.get(token, Prediction(token, 0.0, -1, 0, 0, 0, False))
            if source == OWN and (voter.length > prediction.longest or not prediction.sources & 1):
                prediction = prediction._replace(origin=voter.at)
            predictions[token] = prediction._replace(
                score=prediction.score + weight,
                longest=max(prediction.longest, voter.length),
                support=prediction.support + 1,
                sources=prediction.sources | 1 << min(source, 2),
                near=prediction.near or voter.kind >= NEAR,
            )
        return list(predictions.values())

    def _consider(
        self, row: Row, prediction: Prediction, predictions: list[Prediction], drafted: list[int], parent: int
    ) -> float:
        """Record a token as considered; return its confidence."""
        total = 0.0
        for other in predictions:
            total += other.score
        last = (row.text + drafted)[-1]
        signs = (prediction.longest, prediction.score / total, prediction.support, prediction.sources, prediction.near)
        return self.learnt.consider(row.predictions, prediction.token, parent, last, row.owner, signs)

    def _source(self, row: Row, prediction: Prediction) -> int:
        if prediction.sources & 1 == 0:
            return 2 if prediction.sources & 2 else 3
        return int(prediction.origin < row.start)

    def _follow(self, row: Row, voters: list[Voter], token: int, drafted: list[int]) -> list[Voter]:
        """Return the voters that predicted `token`, one token further."""
        agree = [voter for voter in voters if self.gathering.predicted(row, voter, drafted) == token]
        return [voter._replace(at=voter.at + 1, length=voter.length + 1) for voter in agree]

    def _chain(self, row: Row, voters: list[Voter], limit: int, head: Draft) -> Draft:
        """Return a chain that begins with `head`."""
        ids, confidences, sources = list(head.ids), list(head.confidences), list(head.sources)
        survival = math.prod(self.engine.chances(row.engine)) if ids else 1.0
        while len(ids) < limit:
            if not voters and ids:
                voters = self.gathering.anew(row, ids)
            predictions = self._vote(row, voters, ids)
            if not predictions:
                break
            best = max(predictions, key=lambda it: it.score * (1.0 + self.learnt.length_class(it.longest)))
            chance = self._consider(row, best, predictions, ids, len(ids) - 1)
            survival *= chance
            if survival < self.settings.min_survival:
                row.predictions.considered.pop()
                break
            sources.append(self._source(row, best))
            voters = self._follow(row, voters, best.token, ids)
            ids.append(best.token)
            confidences.append(chance)
        return Draft(ids, _rounded(confidences), sources, [k - 1 for k in range(len(ids))])

    def _tree(self, row: Row, voters: list[Voter], limit: int) -> Draft:
        nodes = [Node([], voters, 1.0, -1)]
        offers: list[Offer] = []
        taken: list[Offer] = []
        while True:
            nodes[-1] = self._open(row, nodes[-1], len(nodes) - 1, offers)
            open_offers = [offer for offer in offers if offer not in taken]
            best = max(open_offers, key=lambda offer: offer.chance, default=None)
            if len(taken) == limit or best is None or best.chance < self.settings.min_survival:
                break
            above = nodes[best.above]
            taken.append(best)
            next_voters = self._follow(row, above.voters, best.token, above.path)
            nodes.append(Node([*above.path, best.token], next_voters, best.chance, offers.index(best)))
        return Draft(
            [offer.token for offer in taken],
            _rounded([offer.chance / max(nodes[offer.above].survival, 1e-9) for offer in taken]),
            [offer.source for offer in taken],
            [offer.above - 1 for offer in taken],
        )

    def _open(self, row: Row, node: Node, number: int, offers: list[Offer]) -> Node:
        """Add the tokens that may follow a node to the offers, the six with the most votes."""
        if node.path and not node.voters:
            node = node._replace(voters=self.gathering.anew(row, node.path))
        predictions = self._vote(row, node.voters, node.path)
        ranked = sorted(predictions, key=lambda it: -it.score)[: min(6, self.most_considered - len(offers))]
        for prediction in ranked:
            chance = node.survival * self._consider(row, prediction, predictions, node.path, node.entry)
            offers.append(Offer(chance, number, prediction.token, self._source(row, prediction)))
        return node


def _worth(chances: Sequence[float]) -> float:
    """Return how many tokens with these probabilities are expected to be right before the first that is wrong."""
    worth, survival = 0.0, 1.0
    for chance in chances:
        survival *= chance
        worth += survival
    return worth


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(np.float32(value)) for value in values]
