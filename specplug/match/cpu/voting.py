"""Voting of all sources' candidates on the next token.

The weight of a vote is the square of the observed odds that such candidates are right, so longer matches far outweigh
shorter ones; of equal ones, the newer counts slightly more.
"""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.evidence import CORPUS, FROM, NEAR, OWN, RESPONSE, length_class, odds, source_bit, vote_key
from specplug.match.cpu.searching import token_after

OF_SIBLING = 1 << 40
"""Place 0 of slot 0's text, as a candidate of kind RESPONSE; the texts of the slots follow each other."""

_AGE_PENALTY = 0.05
_COPY_PENALTY = 0.3  # places of a corpus are not ordered by age; many equal ones are often copies of one text
_LENGTH_BONUS = 1.0  # a longer match predicts more tokens beyond the next one


@compiled
def predicted(texts: Any, text: Any, n: int, responses: Any, end: int, kind: int, at: int, drafted: Any) -> int:
    """Return the token at place `at` of a candidate's text, negative for none; own text continues with its draft.

    Args:
        texts: the texts of all slots.
        text: [C] int32, own text, of `n` tokens.
        responses: [R] int32, the ring of responses up to place `end`.
        kind, at: the candidate's kind and place.
        drafted: [N] int32, tokens drafted so far.
    """
    source = kind & FROM
    if source == OWN:
        token: int = text[at] if at < n else drafted[at - n]
    elif source == RESPONSE and at >= OF_SIBLING:
        slot, place = divmod(at - OF_SIBLING, texts.text.shape[1])
        token = texts.text[slot, place] if place < texts.lengths[slot] else -1
    elif source == RESPONSE:
        token = responses[at & (responses.size - 1)] if at < end else -1
    else:
        token = token_after(at)
    return token


@compiled
def token_at(state: Any, slot: int, kind: int, at: int) -> int:
    """Return the token that a candidate of a slot predicts; see `predicted`."""
    texts, memory = state.texts, state.memory
    return predicted(
        texts, texts.text[slot], texts.lengths[slot], memory.text, memory.ends[0], kind, at, state.workspace.drafted
    )


@compiled
def vote(state: Any, slot: int, node: int, count: int) -> int:
    """Let `count` candidates of a node vote; return the number of tokens, whose figures are in the workspace."""
    texts, memory, workspace, votes = state.texts, state.memory, state.workspace, state.tables.votes
    text, n, responses, end = texts.text[slot], texts.lengths[slot], memory.text, memory.ends[0]  # faster in loops
    kinds, places, lengths = workspace.kind[node], workspace.at[node], workspace.length[node]
    drafted = workspace.drafted
    token_of, score, longest, support = workspace.token, workspace.score, workspace.longest, workspace.support
    sources, near, origin = workspace.sources, workspace.near, workspace.origin
    tokens, rank, before = 0, 0, -1
    for k in range(count):
        kind, at, length = kinds[k], places[k], lengths[k]
        rank = rank + 1 if kind & FROM == before else 0
        before = kind & FROM
        token = predicted(texts, text, n, responses, end, kind, at, drafted)
        if token < 0:
            continue
        chance = odds(votes, vote_key(kind, length))
        weight = chance * chance
        if kind < NEAR:
            weight /= 1.0 + (_COPY_PENALTY if kind & FROM >= CORPUS else _AGE_PENALTY) * rank
        t = 0
        while t < tokens and token_of[t] != token:
            t += 1
        if t == tokens:
            tokens += 1
            token_of[t], score[t], longest[t], support[t] = token, 0.0, -1, 0
            sources[t], near[t] = 0, 0
        score[t] += weight
        support[t] += 1
        near[t] |= int(kind >= NEAR)
        if kind & FROM == OWN and (length > longest[t] or sources[t] & 1 == 0):
            origin[t] = at
        longest[t] = max(longest[t], length)
        sources[t] |= source_bit(kind)
    return tokens


@compiled
def best(workspace: Any, tokens: int) -> int:
    """Return the index of the token with the longest expected draft, by its votes and its longest match."""
    found, most = 0, -1.0
    score, longest = workspace.score, workspace.longest
    for t in range(tokens):
        worth = score[t] * (1.0 + _LENGTH_BONUS * length_class(longest[t]))
        if worth > most:
            found, most = t, worth
    return found


@compiled
def follow(state: Any, slot: int, node: int, count: int, token: int, child: int) -> int:
    """Copy the candidates of a node that predicted `token` to its child, one token further; return their number."""
    texts, memory, workspace = state.texts, state.memory, state.workspace
    text, n, responses, end = texts.text[slot], texts.lengths[slot], memory.text, memory.ends[0]
    kinds, places, lengths = workspace.kind[node], workspace.at[node], workspace.length[node]
    drafted = workspace.drafted
    child_kinds, child_places, child_lengths = workspace.kind[child], workspace.at[child], workspace.length[child]
    kept = 0
    for k in range(count):
        kind, at = kinds[k], places[k]
        if predicted(texts, text, n, responses, end, kind, at, drafted) == token:
            child_kinds[kept], child_places[kept], child_lengths[kept] = kind, at + 1, lengths[k] + 1
            kept += 1
    return kept
