"""Prefetching of the next row's memory while the current row is processed, because rows are far apart in memory."""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.pointers import prefetch
from specplug.match.cpu.recency import GRANULE, bucket

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
