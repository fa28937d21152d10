"""Per-slot state of drafting between two steps, the workspace for one row's draft, and the record of all memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specplug.match.cpu.corpus_index import MOST_NAMED
from specplug.match.cpu.records import Record, RecordType, define
from specplug.match.cpu.texts import MOST_CANDIDATES

MOST_CANDIDATE_VOTES = 3 * MOST_CANDIDATES + 3
"""The most candidates of a row: those of own text, responses and corpus index, and an aligned one of each."""

POINTS = 4
"""Number of segments of a tenant with interleaved searches; merging keeps the number of segments low."""


class RowsType(RecordType):
    """See `Rows`."""


class _Rows(Record):
    pass


define(
    _Rows,
    RowsType,
    [
        "owners",
        "hit_rate",
        "tenants",
        "named",
        "anchors",
        "ages",
        "bounds",
        "points",
        "drafted_for",
        "num_considered",
        "tokens",
        "parents",
        "evidence",
        "contexts",
        "token_keys",
        "num_candidate_votes",
        "candidate_vote_tokens",
        "candidate_vote_keys",
    ],
)


class Rows:
    """S slots' state, at most N considered tokens each.

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
    """

    def __init__(self, max_slots: int, most_considered: int) -> None:
        def table(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
            return np.zeros((max_slots, *shape), np.int32)

        self.owners, self.hit_rate = table(), np.zeros(max_slots, np.float32)
        self.tenants, self.named = table(), table(MOST_NAMED)
        self.anchors, self.ages = np.zeros((max_slots, 3), np.int64), table(3)
        self.bounds = np.zeros((max_slots, 2), np.int64)
        self.drafted_for = table() - 1
        considered = [table(most_considered) for _ in range(5)]
        candidate_votes = [table(MOST_CANDIDATE_VOTES) for _ in range(2)]
        self.record = _Rows(  # type: ignore[no-untyped-call]
            self.owners,
            self.hit_rate,
            self.tenants,
            self.named,
            self.anchors,
            self.ages,
            self.bounds,
            np.full((max_slots, POINTS), -1, np.int64),
            self.drafted_for,
            table(),
            *considered,
            table(),
            *candidate_votes,
        )

    def clear(self, slot: int, owner: int, tenant: int = 0, named: Sequence[int] = ()) -> None:
        """Begin a new request in a slot."""
        self.owners[slot], self.hit_rate[slot], self.tenants[slot] = owner, 0.5, tenant
        self.anchors[slot], self.ages[slot], self.drafted_for[slot] = 0, 0, -1
        self.named[slot], self.bounds[slot] = 0, 0
        self.named[slot, : len(named)] = named


class WorkspaceType(RecordType):
    """See `Workspace`."""


class _Workspace(Record):
    pass


define(
    _Workspace,
    WorkspaceType,
    [
        "at", "length", "kind", "places", "lengths",
        "token", "score", "longest", "support", "sources", "near", "origin",
        "context", "drafted",
    ],
)  # fmt: skip


class Workspace:
    """Scratch memory for one row at a time: candidates, the tokens that they vote for, and the context with its draft.

    It also holds the candidates of a tree's nodes; row 0 is that of the context.
    """

    def __init__(self, cap: int, draft_length: int, *, trees: bool) -> None:
        nodes = draft_length + 1 if trees else 1

        def ints(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
            return np.zeros(shape, np.int32)

        candidates = [
            np.zeros((nodes, MOST_CANDIDATE_VOTES), np.int64),
            *(ints(nodes, MOST_CANDIDATE_VOTES) for _ in range(2)),
        ]
        found = [ints(MOST_CANDIDATES) for _ in range(2)]
        tokens = [ints(MOST_CANDIDATE_VOTES) for _ in range(5)]
        score, origin = np.zeros(MOST_CANDIDATE_VOTES), np.zeros(MOST_CANDIDATE_VOTES, np.int64)
        self.record = _Workspace(  # type: ignore[no-untyped-call]
            *candidates,
            *found,
            tokens[0],
            score,
            *tokens[1:],
            origin,
            ints(cap + draft_length + 1),
            ints(draft_length + 1),
        )


class TreeType(RecordType):
    """See `Tree`."""


class _Tree(Record):
    pass


define(_Tree, TreeType, ["counts", "depths", "survivals", "entries", "above", "chances", "nodes", "sources"])


class Tree:
    """Scratch memory for growing one tree of at most N nodes; node 0 is the context.

    A node has a number of candidates, a depth, a survival probability, the index of its considered token, and a parent
    node.  A considered token has a probability of being reached and accepted (-1 once it is a node), the node that it
    follows, and a source.
    """

    def __init__(self, draft_length: int, most_considered: int) -> None:
        counts, depths, entries, above = (np.zeros(draft_length + 1, np.int32) for _ in range(4))
        chances, survivals = np.zeros(most_considered), np.zeros(draft_length + 1)
        nodes, sources = (np.zeros(most_considered, np.int32) for _ in range(2))
        self.record = _Tree(counts, depths, survivals, entries, above, chances, nodes, sources)  # type: ignore[no-untyped-call]


class StateType(RecordType):
    """See `State`."""


class State(Record):
    """The memory of `specplug.match.cpu.lookup`; the constructor takes all attributes in this order.

    Attributes:
        texts, memory, corpus_index, rows, tables, workspace, tree: records of
            `Texts`, `Responses`, `CorpusIndex`, `Rows`, `Tables`, `Workspace` and `Tree`.
        starts: [S] int32, the start of each slot's own text, after its references.
        max_n, min_n, min_survival: see `specplug.match.options.LookupSettings`.
        pool: the record of the `ThreadPool` that shares the work.
        of_threads: [T] int64, addresses of the states of the pool's threads, which differ in their workspaces only.
    """


define(
    State,
    StateType,
    ["texts", "memory", "corpus_index", "rows", "tables", "workspace", "tree", "starts", "max_n", "min_n",
     "min_survival", "pool", "of_threads"],
)  # fmt: skip
