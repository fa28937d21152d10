"""Learning from emitted tokens: they show which candidates and which considered tokens of a slot were right.

As in a verifier, a token is judged only if those before it were right, and each emitted token judges one position.  The
tables count a chain as if all of it had been verified, whatever was verified in fact:

- A chain is judged with the tokens that the next step emits, up to the first wrong one.
- If all of these agree and the chain is longer, as after a step in which little or nothing was verified, its remaining
  tokens are *held*, and the steps that follow judge them, whether they draft or not.
- Drafts that are made meanwhile are judged by their candidates' votes alone: their tokens stand at positions that the
  held chain is judged at.  The first draft after the held chain's end, or after its first wrong token, is judged again.

A chain whose tokens were all right is the exception: its bonus token judges the next draft, if nothing was verified.
Trees are not held: of them the next step's tokens judge what they reach.
"""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.evidence import MOST_CONTEXT_TRIES, MOST_TRIES, count, halve

_SLOWLY = 0.8


@compiled
def learn(state: Any, slot: int, emitted: Any) -> None:
    """Count hits of a slot's candidates and considered tokens among the tokens `emitted` [n] int32 after its text."""
    rows = state.rows
    tables = state.tables
    length = state.texts.lengths[slot]
    is_drafted = rows.drafted_for[slot] == length
    is_held = rows.held_for[slot] == length
    if is_drafted:
        for k in range(rows.num_candidate_votes[slot]):
            token = rows.candidate_vote_tokens[slot, k]
            if token >= 0:
                count(tables.votes, rows.candidate_vote_keys[slot, k], token == emitted[0])
    if is_held:
        rows.num_considered[slot] = 0
        _judge_held(state, slot, emitted)
    elif is_drafted:
        _judge_draft(state, slot, emitted)


@compiled
def _judge_draft(state: Any, slot: int, emitted: Any) -> None:
    """Judge the newest draft, and hold what remains of a chain."""
    rows = state.rows
    right = -1
    total = rows.num_considered[slot]
    judged = 0
    began_right = False
    for k in range(emitted.size):
        right, judged = _judge_children(state, slot, right, total, judged, emitted[k])
        if right < 0:
            break
        began_right = True
    if total and rows.evidence[slot, 0] >= 0:
        rows.hit_rate[slot] = _SLOWLY * rows.hit_rate[slot] + (1 - _SLOWLY) * began_right
    rows.num_considered[slot] = judged  # nothing after these was counted
    remaining = min(total - right - 1, rows.held.shape[2]) if right >= 0 else 0
    if remaining > 0:
        held = rows.held[slot]
        for k in range(remaining):
            entry = right + 1 + k
            held[0, k], held[1, k] = rows.tokens[slot, entry], rows.evidence[slot, entry]
            held[2, k], held[3, k] = rows.contexts[slot, entry], rows.token_keys[slot, entry]
        rows.held_begin[slot], rows.held_next[slot], rows.held_end[slot] = 0, 0, remaining
        rows.held_for[slot] = state.texts.lengths[slot] + emitted.size


@compiled
def _judge_children(state: Any, slot: int, parent: int, total: int, judged: int, token: int) -> tuple[int, int]:
    """Count hits and misses of the tokens that were considered after `parent`.

    Returns:
        the index of the right one, -1 for none; and the end index of the tokens counted so far.
    """
    rows = state.rows
    found = -1
    inside = False
    for entry in range(parent + 1, total):  # the children of a parent are adjacent
        if rows.parents[slot, entry] == parent:
            inside = True
            judged = entry + 1
            hit = rows.tokens[slot, entry] == token
            evidence, context, key = (
                rows.evidence[slot, entry],
                rows.contexts[slot, entry],
                rows.token_keys[slot, entry],
            )
            _count_token(state.tables, evidence, context, key, hit)
            if hit:
                found = entry
        elif inside:
            break
    return found, judged


@compiled
def _judge_held(state: Any, slot: int, emitted: Any) -> None:
    """Judge the held chain, which is held on while its tokens are right and some remain."""
    rows = state.rows
    held = rows.held[slot]
    place = rows.held_next[slot]
    end = rows.held_end[slot]
    hit = True
    rows.held_begin[slot] = place
    for token in emitted:
        if place == end or not hit:
            break
        hit = held[0, place] == token
        _count_token(state.tables, held[1, place], held[2, place], held[3, place], hit)
        place += 1
    rows.held_next[slot] = place
    rows.held_for[slot] = rows.held_for[slot] + emitted.size if hit and place < end else -1


@compiled
def _count_token(tables: Any, evidence: int, context: int, key: int, hit: bool) -> None:
    if evidence >= 0:  # not one of the engine's own tokens
        count(tables.evidence, evidence, hit)
        count(tables.contexts, context, hit)
        count(tables.tokens, key, hit)


@compiled
def halve_large_counts(state: Any, slot: int) -> None:
    """Halve the counts that have grown large; call it after all rows of a step have been counted."""
    rows = state.rows
    tables = state.tables
    held = state.rows.held[slot]
    if rows.drafted_for[slot] >= 0:
        for k in range(rows.num_candidate_votes[slot]):
            halve(tables.votes, rows.candidate_vote_keys[slot, k], MOST_TRIES)
        for k in range(rows.num_considered[slot]):
            _halve_token(tables, rows.evidence[slot, k], rows.contexts[slot, k], rows.token_keys[slot, k])
    for k in range(rows.held_begin[slot], rows.held_next[slot]):
        _halve_token(tables, held[1, k], held[2, k], held[3, k])
    rows.held_begin[slot] = rows.held_next[slot]


@compiled
def _halve_token(tables: Any, evidence: int, context: int, key: int) -> None:
    if evidence >= 0:
        halve(tables.evidence, evidence, MOST_TRIES)
        halve(tables.contexts, context, MOST_CONTEXT_TRIES)
        halve(tables.tokens, key, MOST_CONTEXT_TRIES)
