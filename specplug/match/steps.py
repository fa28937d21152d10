"""A batch at a time: what the rows' new tokens teach and are added to, and the rows' drafts."""

from __future__ import annotations

from typing import Any

from specplug.match.compiled import compiled
from specplug.match.drafting import draft_chain, draft_tree
from specplug.match.learning import forget_slowly, learn
from specplug.match.texts import NO_TEXT, extend, replant


@compiled
def ingest(
    texts: Any,
    rows: Any,
    tables: Any,
    starts: Any,
    slots: Any,
    table: Any,
    table_rows: Any,
    first: Any,
    lengths: Any,
    num_new: Any,
    cap: int,
) -> None:
    """Take in each row's newest tokens.

    Args:
        starts: [S] int32, where own texts begin behind their references.
        slots, table_rows: [B] int64.
        table: [R, W] int32, the token table, or a window of it.
        first: [B] int32, which of a row's tokens stands in column 0; empty where it is token 0.
        lengths, num_new: [B] int32.
    """
    for row in range(slots.size):
        slot, begin = slots[row], lengths[row] - num_new[row]
        known = texts.lengths[slot] - starts[slot]
        if num_new[row] > 0 and rows.drafted_for[slot] == texts.lengths[slot] and known == begin:
            learn(rows, tables, slot, _window(table, table_rows, first, row, begin, lengths[row]))
    for row in range(slots.size):
        slot = slots[row]
        if num_new[row] > 0 and rows.drafted_for[slot] >= 0:
            forget_slowly(rows, tables, slot)
            rows.drafted_for[slot] = -1
    for row in range(slots.size):
        slot, begin = slots[row], lengths[row] - num_new[row]
        if starts[slot] + lengths[row] > texts.text.shape[1]:
            texts.candidates[slot] = 0
        elif num_new[row] > 0:
            _place(texts, rows, slot, starts[slot] + begin, cap)
            extend(texts, slot, _window(table, table_rows, first, row, begin, lengths[row]), cap)
            for source in range(2):
                rows.ages[slot, source] += num_new[row]
                if rows.anchors[slot, source] > 0:
                    rows.anchors[slot, source] += num_new[row]


@compiled
def _window(table: Any, table_rows: Any, first: Any, row: int, begin: int, end: int) -> Any:
    """Return a row's tokens from `begin` to `end`."""
    shift = first[row] if first.size else 0
    return table[table_rows[row], begin - shift : end - shift]


@compiled
def _place(texts: Any, rows: Any, slot: int, length: int, cap: int) -> None:
    """Bring a text to `length` tokens: what the engine took back goes, what nobody was told of is no text."""
    if length < texts.lengths[slot]:
        texts.lengths[slot] = length
        replant(texts, slot, cap)
        rows.anchors[slot] = 0
    while texts.lengths[slot] < length:
        texts.text[slot, texts.lengths[slot]] = NO_TEXT
        texts.lengths[slot] += 1
        texts.candidates[slot] = 0


@compiled
def propose_chains(
    texts: Any,
    memory: Any,
    rows: Any,
    tables: Any,
    bench: Any,
    starts: Any,
    slots: Any,
    limits: Any,
    cap: int,
    shortest: int,
    least: float,
    ids: Any,
    confidences: Any,
    counts: Any,
    sources: Any,
) -> None:
    """Draft a chain for each row; see `draft_chain`.

    Args:
        slots: [B] int64.
        limits: [B] int32.
        ids, confidences: [B, N] int32 and float32, to be filled.
        counts, sources: [B] int32, to be filled.
    """
    for row in range(slots.size):
        if limits[row] > 0 and texts.lengths[slots[row]] > starts[slots[row]]:
            counts[row], sources[row] = draft_chain(
                texts,
                memory,
                rows,
                tables,
                bench,
                starts,
                slots[row],
                min(limits[row], ids.shape[1], bench.drafted.size - 1),
                cap,
                shortest,
                least,
                ids[row],
                confidences[row],
            )


@compiled
def propose_trees(
    texts: Any,
    memory: Any,
    rows: Any,
    tables: Any,
    bench: Any,
    starts: Any,
    slots: Any,
    limits: Any,
    cap: int,
    shortest: int,
    least: float,
    ids: Any,
    confidences: Any,
    counts: Any,
    sources: Any,
    parents: Any,
    tree: Any,
) -> None:
    """Draft a tree for each row; see `propose_chains` and `draft_tree`.  `parents`: [B, N] int32, to be filled."""
    for row in range(slots.size):
        if limits[row] > 0 and texts.lengths[slots[row]] > starts[slots[row]]:
            counts[row], sources[row] = draft_tree(
                texts,
                memory,
                rows,
                tables,
                bench,
                starts,
                slots[row],
                min(limits[row], ids.shape[1], bench.drafted.size - 1),
                cap,
                shortest,
                least,
                ids[row],
                confidences[row],
                parents[row],
                tree,
            )
