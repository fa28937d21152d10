"""State: all memory of a lookup's kernels in one record, because every argument of a call takes time."""

from __future__ import annotations

from specplug.match.cpu.records import Record, RecordType, define


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
