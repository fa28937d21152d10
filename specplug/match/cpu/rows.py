"""Per-slot state of drafting between two steps, and the workspace for one row's draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.corpus_index import MOST_NAMED
from specplug.match.cpu.engine_draft import PRIOR_HITS, PRIOR_TRIES
from specplug.match.cpu.locks import release, take
from specplug.match.cpu.records import Record, record
from specplug.match.cpu.texts import MOST_CANDIDATES

MOST_CANDIDATE_VOTES = 4 * MOST_CANDIDATES + 3
"""The most candidates of a row: those of own text, responses, siblings and corpus index, and three aligned ones."""

MOST_SIBLINGS = 15
"""The most siblings whose outputs a row is looked up in: groups may be larger."""

POINTS = 4
"""Number of segments of a tenant with interleaved searches; merging keeps the number of segments low."""


class SlotStates:
    """S slots' state, at most N considered tokens each, and G tokens of the engine's own drafter.

    A *considered* token is one that was drafted or, in a tree, could have been.  Parents are indices among the
    considered tokens, -1 for those that follow the context.

    Attributes:
        owners: [S] int32, the owner whose responses the slot may read; 0 for none.
        hit_rate: [S] float32, recent rate at which the first token of the slot's drafts was right.
        tenants: [S] int32, the tenant whose segments the slot may read; 0 for none.
        named: [S, `MOST_NAMED`] int32, the corpora that its request names, padded with 0.
        anchors, ages: [S, 3] int64 and int32, by source: the place that the text follows there, 0 for none, and the
            number of tokens since it last did so.
        bounds: [S, 2] int64, the bounds of the corpus index's anchor: those of its document.
        points: [S, `POINTS`] int64, insertion points of the text in the first segments of its tenant; -1 for unknown.
        drafted_for: [S] int32, the text's length at its last draft, -1 for never.
        held: [S, 4, H] int32, the tokens of an earlier chain that are still to be judged, see `learning`, and their
            rows in `evidence`, `contexts` and `tokens`; H is 0 for trees.
        held_for: [S] int32, the text's length before the next held token, -1 if none is held.
        held_begin, held_next, held_end: [S] int32, places in `held`: the first one judged in this step, the next one to
            be judged, and the end.
        siblings: [S] int32, the next slot of the same group; the slots of a group form a ring, one without a group is
            alone in its ring.
        engine_counts: [S + 1, G, 2] float32, by slot, and of all requests last: hits and tries of the engine's
            tokens by position.
        num_engine_ids: [S] int32, tokens of the engine's newest draft.
        shared: [S] int32, the tokens at the beginning of a slot's text, references and prompt, that its siblings skip.
    """

    def __init__(self, max_slots: int, most_considered: int, engine_tokens: int = 0, *, held: int = 0) -> None:
        def table(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
            return np.zeros((max_slots, *shape), np.int32)

        self.owners, self.hit_rate = table(), np.zeros(max_slots, np.float32)
        self.tenants, self.named = table(), table(MOST_NAMED)
        self.anchors, self.ages = np.zeros((max_slots, 3), np.int64), table(3)
        self.bounds = np.zeros((max_slots, 2), np.int64)
        self.drafted_for = table() - 1
        self.held_for = table() - 1
        self.shared = table()
        self.siblings = np.arange(max_slots, dtype=np.int32)
        self.num_engine_ids = table()
        self.engine_counts = np.zeros((max_slots + 1, engine_tokens, 2), np.float32)
        self.engine_counts[-1] = PRIOR_HITS, PRIOR_TRIES
        considered = ("tokens", "parents", "evidence", "contexts", "token_keys")
        self.record = record(
            owners=self.owners,
            hit_rate=self.hit_rate,
            tenants=self.tenants,
            named=self.named,
            anchors=self.anchors,
            ages=self.ages,
            bounds=self.bounds,
            points=np.full((max_slots, POINTS), -1, np.int64),
            drafted_for=self.drafted_for,
            held=table(4, held),
            held_for=self.held_for,
            **{name: table() for name in ("held_begin", "held_next", "held_end")},
            siblings=self.siblings,
            shared=self.shared,
            num_considered=table(),
            **{name: table(most_considered) for name in considered},
            num_candidate_votes=table(),
            candidate_vote_tokens=table(MOST_CANDIDATE_VOTES),
            candidate_vote_keys=table(MOST_CANDIDATE_VOTES),
            engine_ids=table(engine_tokens),
            num_engine_ids=self.num_engine_ids,
            engine_counts=self.engine_counts,
        )

    def clear(self, slot: int, owner: int, tenant: int = 0, named: Sequence[int] = ()) -> None:
        """Begin a new request in a slot."""
        self.owners[slot], self.hit_rate[slot], self.tenants[slot] = owner, 0.5, tenant
        self.anchors[slot], self.ages[slot] = 0, 0
        self.drafted_for[slot] = self.held_for[slot] = -1
        self.engine_counts[slot] = self.num_engine_ids[slot] = 0
        self.named[slot], self.bounds[slot] = 0, 0
        self.named[slot, : len(named)] = named

    def join(self, slot: int, member: int, shared: int, flag: Any) -> None:
        """Add a slot to the ring of a `member`, while no step runs; `shared`: see above."""
        self.shared[slot] = shared
        _join(self.siblings, slot, member, flag)

    def leave(self, slot: int, flag: Any) -> None:
        """Take a slot out of its ring, while no step runs."""
        if self.siblings[slot] != slot:
            _leave(self.siblings, slot, flag)


@compiled
def _join(siblings: Any, slot: int, member: int, flag: Any) -> None:
    take(flag)
    siblings[slot] = siblings[member]
    siblings[member] = slot
    release(flag)


@compiled
def _leave(siblings: Any, slot: int, flag: Any) -> None:
    take(flag)
    before = slot
    while siblings[before] != slot:
        before = siblings[before]
    siblings[before] = siblings[slot]
    siblings[slot] = slot
    release(flag)


def workspace(cap: int, draft_length: int, *, trees: bool) -> Record:
    """Return scratch memory for one row at a time: candidates, their tokens, and the context with its draft.

    It also holds the candidates of a tree's nodes; row 0 is that of the context.
    """
    nodes = draft_length + 1 if trees else 1

    def ints(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.zeros(shape, np.int32)

    per_token = ("token", "longest", "support", "sources", "near")
    return record(
        at=np.zeros((nodes, MOST_CANDIDATE_VOTES), np.int64),
        length=ints(nodes, MOST_CANDIDATE_VOTES),
        kind=ints(nodes, MOST_CANDIDATE_VOTES),
        places=ints(MOST_CANDIDATES),
        lengths=ints(MOST_CANDIDATES),
        score=np.zeros(MOST_CANDIDATE_VOTES),
        **{name: ints(MOST_CANDIDATE_VOTES) for name in per_token},
        origin=np.zeros(MOST_CANDIDATE_VOTES, np.int64),
        context=ints(cap + draft_length + 1),
        drafted=ints(draft_length + 1),
    )


def tree(draft_length: int, most_considered: int) -> Record:
    """Return scratch memory for growing one tree of at most N nodes; node 0 is the context.

    A node has a number of candidates, a depth, a survival probability, the index of its considered token, and a parent
    node.  A considered token has a probability of being reached and accepted (-1 once it is a node), the node that it
    follows, and a source.
    """
    return record(
        **{name: np.zeros(draft_length + 1, np.int32) for name in ("counts", "depths", "entries", "above")},
        survivals=np.zeros(draft_length + 1),
        chances=np.zeros(most_considered),
        **{name: np.zeros(most_considered, np.int32) for name in ("nodes", "sources")},
    )
