"""Operations on a batch: ingest the rows' new tokens and learn from them, and draft for the rows.

The next row's memory is prefetched while the current row is processed, because rows are far apart in memory.
"""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.drafting import draft_chain, draft_tree
from specplug.match.cpu.engine_draft import forget_engine_draft, learn_engine_draft
from specplug.match.cpu.intrinsics import prefetch
from specplug.match.cpu.learning import halve_large_counts, learn
from specplug.match.cpu.recency import GRANULE, bucket
from specplug.match.cpu.searching import find_points
from specplug.match.cpu.texts import NO_TEXT, extend, replant


@compiled
def learn_from(state: Any, slots: Any, table: Any, table_rows: Any, first: Any, lengths: Any, num_new: Any) -> None:
    """Learn from the rows' newest tokens, before `extend_texts`.  All rows count in the same tables.

    Args:
        state: the record of all memory, see `Lookup._state`.
        slots, table_rows: [B] int64.
        table: [R, W] int32, the token table, or a window of it.
        first: [B] int32, the index of the token in column 0 of each row; empty if it is 0 in all rows.
        lengths, num_new: [B] int32.
    """
    texts, rows, starts = state.texts, state.rows, state.starts
    for row in range(slots.size):
        slot, begin = slots[row], lengths[row] - num_new[row]
        new = _window(table, table_rows, first, row, begin, lengths[row])
        if row + 1 < slots.size:
            prefetch_predictions(state, slots[row + 1])
        if new.size:
            prefetch_tree_heads(state, slot, new)
            if texts.lengths[slot] - starts[slot] == begin:
                learn(state, slot, new)
                if rows.drafted_for[slot] == texts.lengths[slot]:
                    learn_engine_draft(rows, slot, new)
            else:
                rows.held_for[slot] = -1
    for row in range(slots.size):
        slot, begin = slots[row], lengths[row] - num_new[row]
        new = _window(table, table_rows, first, row, begin, lengths[row])
        if new.size:
            prefetch_tree_roots(state, slot, new)
            halve_large_counts(state, slot)
            if rows.drafted_for[slot] >= 0:
                forget_engine_draft(rows, slot)
                rows.drafted_for[slot] = -1


@compiled
def extend_texts(state: Any, slots: Any, table: Any, table_rows: Any, first: Any, lengths: Any, num_new: Any) -> None:
    """Append the rows' newest tokens to their texts; see `learn_from`.  Rows are independent."""
    texts, rows, starts = state.texts, state.rows, state.starts
    for row in range(slots.size):
        slot, begin = slots[row], lengths[row] - num_new[row]
        if starts[slot] + lengths[row] > texts.text.shape[1]:
            texts.candidates[slot] = 0
        elif num_new[row] > 0:
            _place(state, slot, starts[slot] + begin)
            extend(texts, slot, _window(table, table_rows, first, row, begin, lengths[row]), state.max_n)
            for source in range(rows.ages.shape[1]):
                rows.ages[slot, source] += num_new[row]
                if rows.anchors[slot, source] > 0:
                    rows.anchors[slot, source] += num_new[row]


@compiled
def _window(table: Any, table_rows: Any, first: Any, row: int, begin: int, end: int) -> Any:
    """Return a row's tokens from `begin` to `end`."""
    shift = first[row] if first.size else 0
    return table[table_rows[row], begin - shift : end - shift]


@compiled
def _place(state: Any, slot: int, length: int) -> None:
    """Bring a text to `length` tokens: truncate tokens that the engine withdrew, and fill gaps with NO_TEXT."""
    texts = state.texts
    if length < texts.lengths[slot]:
        texts.lengths[slot] = length
        replant(texts, slot, state.max_n)
        state.rows.anchors[slot, :] = 0
    while texts.lengths[slot] < length:
        texts.text[slot, texts.lengths[slot]] = NO_TEXT
        texts.lengths[slot] += 1
        texts.candidates[slot] = 0


@compiled
def propose(
    state: Any,
    slots: Any,
    limits: Any,
    engine_ids: Any,
    ids: Any,
    confidences: Any,
    counts: Any,
    sources: Any,
    parents: Any,
) -> None:
    """Draft a chain for each row, or a tree if `parents` has rows; see `draft_chain` and `draft_tree`.

    Args:
        state: the record of all memory, see `Lookup._state`.
        slots: [B] int64.
        limits: [B] int32.
        engine_ids: [B, G] int32, the draft of the engine's own drafter, for chains; G is 0 if there is none.
        ids, confidences, sources: [B, N] int32, float32 and int32, to be filled.
        counts: [B] int32, to be filled.
        parents: [B, N] int32, to be filled, or [0, N].
    """
    find_points(state, slots, limits)
    for row in range(slots.size):
        slot, limit = slots[row], _limit(state, slots, limits, row, ids.shape[1])
        if limit <= 0:
            continue
        if parents.shape[0] > 0:
            counts[row] = draft_tree(state, slot, limit, ids[row], confidences[row], sources[row], parents[row])
        else:
            counts[row] = draft_chain(state, slot, limit, engine_ids[row], ids[row], confidences[row], sources[row])


@compiled
def _limit(state: Any, slots: Any, limits: Any, row: int, draft_length: int) -> int:
    """Return how many tokens to draft for a row, none before it has own text.  Prefetches for the next rows."""
    if row == 0:
        for each in slots:
            prefetch_response_head(state, each)
    if row + 1 < slots.size:
        prefetch_response_root(state, slots[row + 1])
    slot = slots[row]
    if state.texts.lengths[slot] <= state.starts[slot]:
        return 0
    return min(limits[row], draft_length, state.workspace.drafted.size - 1)  # type: ignore[no-any-return]


MOST_PREFETCHED = 16
"""The most new tokens of a row that are prefetched for; a prompt's tokens would drive each other out of the caches."""


@compiled
def prefetch_predictions(state: Any, slot: int) -> None:
    """Prefetch the predictions of a slot's next tokens."""
    rows = state.rows
    candidate_votes, entries = slot * rows.candidate_vote_tokens.shape[1], slot * rows.tokens.shape[1]
    for at in range(0, rows.num_candidate_votes[slot], 16):
        prefetch(rows.candidate_vote_tokens, candidate_votes + at)
        prefetch(rows.candidate_vote_keys, candidate_votes + at)
    prefetch(rows.tokens, entries)
    prefetch(rows.parents, entries)
    prefetch(rows.evidence, entries)
    prefetch(rows.contexts, entries)
    prefetch(rows.token_keys, entries)


@compiled
def prefetch_tree_heads(state: Any, slot: int, tokens: Any) -> None:
    """Prefetch the heads of the trees that `tokens` [n] go into."""
    texts = state.texts
    begin, size = slot * texts.heads.shape[1], texts.trees[slot]
    for k in range(min(tokens.size, MOST_PREFETCHED)):
        prefetch(texts.heads, begin + bucket(tokens[k], 0, size))
    prefetch(texts.text, slot * texts.text.shape[1] + texts.lengths[slot])


@compiled
def prefetch_tree_roots(state: Any, slot: int, tokens: Any) -> None:
    """Prefetch the roots of those trees, and the memory of the new tokens' own places."""
    texts = state.texts
    size, places, text = texts.trees[slot], slot * texts.children.shape[1], slot * texts.text.shape[1]
    for k in range(min(tokens.size, MOST_PREFETCHED)):
        root = texts.heads[slot, bucket(tokens[k], 0, size)]
        prefetch(texts.children, places + 2 * root)
        prefetch(texts.text, text + root - 1)
    prefetch(texts.children, places + 2 * texts.lengths[slot])


@compiled
def prefetch_response_head(state: Any, slot: int) -> None:
    """Prefetch the head of the tree of responses in which a slot's text is looked up."""
    memory = state.memory
    prefetch(memory.heads, _tree_of_responses(state, slot))


@compiled
def prefetch_response_root(state: Any, slot: int) -> None:
    """Prefetch the root of that tree."""
    memory = state.memory
    root, mask = memory.heads[_tree_of_responses(state, slot)], memory.text.size - 1
    prefetch(memory.children, 2 * (root & mask))
    prefetch(memory.text, (root - 1) & mask)
    prefetch(memory.owners, ((root - 1) & mask) // GRANULE)


@compiled
def _tree_of_responses(state: Any, slot: int) -> int:
    texts, memory = state.texts, state.memory
    last = texts.text[slot, max(texts.lengths[slot] - 1, 0)]
    return bucket(last, state.rows.owners[slot], memory.heads.size)
