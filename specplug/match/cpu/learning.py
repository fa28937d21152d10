"""Learning: compares emitted tokens with predictions, whether the draft was verified or not."""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.evidence import MOST_CONTEXT_TRIES, MOST_TRIES, count, halve

_SLOWLY = 0.8


@compiled
def learn(state: Any, slot: int, emitted: Any) -> None:
    """Compare a slot's candidates and considered tokens with the tokens `emitted` [n] int32 since, and count hits.

    As in a verifier, a token is judged only if those before it were right.
    """
    rows, tables, first = state.rows, state.tables, emitted[0]
    for k in range(rows.num_candidate_votes[slot]):
        if rows.candidate_vote_tokens[slot, k] >= 0:
            count(tables.votes, rows.candidate_vote_keys[slot, k], rows.candidate_vote_tokens[slot, k] == first)
    right, total, judged, began_right = -1, rows.num_considered[slot], 0, False
    for k in range(emitted.size):
        right, judged = _judge(state, slot, right, total, judged, emitted[k])
        if right < 0:
            break
        began_right = True
    if total:
        rows.hit_rate[slot] = _SLOWLY * rows.hit_rate[slot] + (1 - _SLOWLY) * began_right
    rows.num_considered[slot] = judged  # nothing after these was counted


@compiled
def _judge(state: Any, slot: int, parent: int, total: int, judged: int, token: int) -> tuple[int, int]:
    """Count hits and misses of the tokens that were considered after `parent`.

    Returns:
        the index of the right one, -1 for none; and the end index of the tokens counted so far.
    """
    rows, tables = state.rows, state.tables
    found, inside = -1, False
    for entry in range(parent + 1, total):  # the children of a parent are adjacent
        if rows.parents[slot, entry] == parent:
            inside, judged = True, entry + 1
            hit = rows.tokens[slot, entry] == token
            count(tables.evidence, rows.evidence[slot, entry], hit)
            count(tables.contexts, rows.contexts[slot, entry], hit)
            count(tables.tokens, rows.token_keys[slot, entry], hit)
            if hit:
                found = entry
        elif inside:
            break
    return found, judged


@compiled
def halve_large_counts(state: Any, slot: int) -> None:
    """Halve the counts that have grown large; call it after all rows of a step have been counted."""
    rows, tables = state.rows, state.tables
    for k in range(rows.num_candidate_votes[slot]):
        halve(tables.votes, rows.candidate_vote_keys[slot, k], MOST_TRIES)
    for k in range(rows.num_considered[slot]):
        halve(tables.evidence, rows.evidence[slot, k], MOST_TRIES)
        halve(tables.contexts, rows.contexts[slot, k], MOST_CONTEXT_TRIES)
        halve(tables.tokens, rows.token_keys[slot, k], MOST_CONTEXT_TRIES)
