"""All that the kernels of a lookup read and write, as one record: every argument of a call takes time."""

from __future__ import annotations

from specplug.match.cpu.records import Record, RecordType, define


class StateType(RecordType):
    """See `State`."""


class State(Record):
    """What `specplug.match.cpu.lookup` holds; called with all of it, in this order.

    Attributes:
        texts, memory, corpus_index, rows, tables, workspace, tree: records of
            `Texts`, `Responses`, `CorpusIndex`, `Rows`, `Tables`, `Workspace` and `Tree`.
        starts: [S] int32, where each slot's own text begins, behind its references.
        cap: most tokens that a match is compared over.
        shortest: tokens that have to match.
        least: a draft ends where it survives less likely than this.
    """


define(
    State,
    StateType,
    ["texts", "memory", "corpus_index", "rows", "tables", "workspace", "tree", "starts", "cap", "shortest", "least"],
)
