"""The draft of the engine's own drafter for a row: how often its tokens were right, and whether it stands.

Lookup continues the engine's tokens, or its own draft stands instead (Arctic Inference, arXiv 2507.17133, joins
suffix decoding and a draft head likewise).  Which one does is decided by what was learnt before, never by the engine's
newest tokens: tokens that are drawn from a distribution keep it only if they are not selected by value.  For the same
reason their confidence is their position's rate.
"""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.evidence import count, halve

NO_EVIDENCE = -1
"""Stands for the evidence of the engine's tokens, which is in no table."""

PRIOR_HITS, PRIOR_TRIES = 3.0, 4.0
"""What all requests have at each position before any token was judged."""

COMMON_TRIES = 8.0
"""Tries at the rate of all requests that count with a request's own."""

_MOST_OWN, _MOST_COMMON = 64.0, 4000.0


@compiled
def num_engine_tokens(engine_ids: Any, limit: int) -> int:
    """Return how many of the engine's tokens there are, at most `limit`."""
    count = 0
    while count < min(engine_ids.size, limit) and engine_ids[count] >= 0:
        count += 1
    return count


@compiled
def engine_chance(rows: Any, slot: int, place: int) -> float:
    """Return the probability that the engine's token at a position is right, if those before it are."""
    own, common = rows.engine_counts[slot], rows.engine_counts[rows.engine_counts.shape[0] - 1]
    rate = common[place, 0] / common[place, 1]
    return (own[place, 0] + COMMON_TRIES * rate) / (own[place, 1] + COMMON_TRIES)  # type: ignore[no-any-return]


@compiled
def note_engine_draft(rows: Any, slot: int, engine_ids: Any, taken: int) -> None:
    """Store the first `taken` of the engine's tokens, to learn later whether they were right."""
    for k in range(taken):
        rows.engine_ids[slot, k] = engine_ids[k]
    rows.num_engine_ids[slot] = taken


@compiled
def engine_draft_stands(rows: Any, slot: int, taken: int, drafted: int, confidences: Any) -> bool:
    """Return whether the engine's first `taken` tokens are worth more than as many of lookup's `drafted` ones."""
    by_engine, by_lookup, survival = 0.0, 0.0, 1.0
    for k in range(taken):
        survival *= engine_chance(rows, slot, k)
        by_engine += survival
    survival = 1.0
    for k in range(min(taken, drafted)):
        survival *= confidences[k]
        by_lookup += survival
    return by_engine > by_lookup


@compiled
def take_engine_draft(
    state: Any, slot: int, taken: int, learns: bool, ids: Any, confidences: Any, sources: Any
) -> float:
    """Begin a row's draft with the engine's first `taken` tokens; return the probability that all are right.

    `learns`: lookup drafted the same tokens, whose evidence learns from them.
    """
    rows, survival = state.rows, 1.0
    for k in range(taken):
        chance, token = engine_chance(rows, slot, k), rows.engine_ids[slot, k]
        survival *= chance
        ids[k], confidences[k], sources[k] = token, chance, state.engine_source
        state.workspace.drafted[k] = rows.tokens[slot, k] = token
        if not learns:
            rows.parents[slot, k], rows.evidence[slot, k] = k - 1, NO_EVIDENCE
    return survival


@compiled
def agrees(rows: Any, slot: int, taken: int, drafted: int, ids: Any) -> bool:
    """Return whether lookup's draft begins with the engine's first `taken` tokens."""
    same = 0
    while same < min(taken, drafted) and ids[same] == rows.engine_ids[slot, same]:
        same += 1
    return same == taken


@compiled
def learn_engine_draft(rows: Any, slot: int, emitted: Any) -> None:
    """Compare the engine's tokens with the tokens `emitted` [n] int32 since, up to the first wrong one."""
    common = rows.engine_counts.shape[0] - 1
    for k in range(min(rows.num_engine_ids[slot], emitted.size)):
        hit = rows.engine_ids[slot, k] == emitted[k]
        count(rows.engine_counts[slot], k, hit)
        count(rows.engine_counts[common], k, hit)
        if not hit:
            break


@compiled
def forget_engine_draft(rows: Any, slot: int) -> None:
    """Forget a draft, and halve counts that have grown large; call it after all rows of a step have been counted."""
    common = rows.engine_counts.shape[0] - 1
    for k in range(rows.num_engine_ids[slot]):
        halve(rows.engine_counts[slot], k, _MOST_OWN)
        halve(rows.engine_counts[common], k, _MOST_COMMON)
    rows.num_engine_ids[slot] = 0
